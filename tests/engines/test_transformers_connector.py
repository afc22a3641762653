"""The transformers connector on tiny models: shapes, layouts, and what it does when things are amiss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kvtier_client import Client, Tier
from kvtier_client.connectors.transformers import KVTierCache, UnsupportedModel
from kvtier_client.connectors.transformers_layout import (
    DIGEST_FILE,
    cached_weights_digest,
    compute_weights_digest,
)
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from tests.unit.client.real_store import RealStore, real_store

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tiny(seed: int = 0, dtype: torch.dtype = torch.float32, **options: object) -> PreTrainedModel:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **options)).to(dtype).eval()  # type: ignore[arg-type]


def computed(model: PreTrainedModel, tokens: list[int]) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([tokens]), cache=cache, use_cache=True)
    return cache


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStore]:
    with real_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def client(store: RealStore) -> Iterator[Client]:
    with Client(store.socket, deadline_s=20) as client:
        yield client


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_restored_tensors_are_bit_for_bit_those_saved(client: Client, dtype: torch.dtype) -> None:
    model = tiny(seed=1, dtype=dtype)
    kv = KVTierCache(client, model, block_tokens=8)
    tokens = list(range(50))
    cache = computed(model, tokens)
    assert kv.save(torch.tensor([tokens]), cache).stored_pages == 6
    restored, count, tiers = kv.restore(tokens)
    assert (count, tiers) == (48, {Tier.DRAM: 6})
    assert restored.get_seq_length() == 48
    for ours, theirs in zip(restored.layers, cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys[:, :, :48])
        assert torch.equal(ours.values, theirs.values[:, :, :48])


def test_restored_cache_can_be_continued_and_saved_again(client: Client) -> None:
    model = tiny(seed=2)
    kv = KVTierCache(client, model, block_tokens=8)
    tokens = [7] * 40
    kv.save(tokens, computed(model, tokens))
    cache, count, _ = kv.restore(tokens)
    with torch.no_grad():
        model(torch.tensor([tokens[count:]]), cache=cache)
    longer = [*tokens, *range(24)]
    with torch.no_grad():
        model(torch.tensor([longer[40:]]), cache=cache)
    stored = kv.save(longer, cache, count)
    assert (stored.stored_pages, stored.known_pages) == (3, 1)
    assert kv.restore(longer).tokens == 56


def test_save_starts_further_back_when_what_was_restored_is_gone(client: Client) -> None:
    model = tiny(seed=3)
    kv = KVTierCache(client, model, block_tokens=8)
    tokens = list(range(32))
    assert kv.save(tokens, computed(model, tokens), restored_tokens=16).stored_pages == 4
    assert kv.restore(tokens).tokens == 24


def test_save_leaves_out_what_cache_or_prompt_lack(client: Client) -> None:
    model = tiny(seed=4)
    kv = KVTierCache(client, model, block_tokens=8)
    tokens = list(range(40))
    cache = computed(model, tokens[:20])
    assert kv.save(tokens, cache).stored_pages == 2
    assert kv.save(tokens[:7], cache).stored_pages == 0


def test_small_staging_saves_in_smaller_batches(store: RealStore) -> None:
    model = tiny(seed=11)
    with Client(store.socket, deadline_s=20, staging_bytes=8192) as client:
        kv = KVTierCache(client, model, block_tokens=8)
        tokens = list(range(50))
        cache = computed(model, tokens)
        assert kv.save(tokens, cache).stored_pages == 6
        restored = kv.restore(tokens)
        assert restored.tokens == 48
        for ours, theirs in zip(restored.cache.layers, cache.layers, strict=True):
            assert torch.equal(ours.keys, theirs.keys[:, :, :48])
        assert not client.misses


def test_speed_of_prefill_is_told_and_what_cannot_be_one_is_refused(client: Client) -> None:
    kv = KVTierCache(client, tiny(), block_tokens=8)
    assert kv.report_prefill(100, 0.5, depth=1000)
    for tokens, seconds in ((0, 1.0), (10, 0.0), (10, float("nan"))):
        with pytest.raises(ValueError, match="a prefill has tokens and takes time"):
            kv.report_prefill(tokens, seconds)


@pytest.mark.parametrize("length", [0, 1, 8])
def test_prompt_without_a_block_to_spare_restores_nothing(client: Client, length: int) -> None:
    assert KVTierCache(client, tiny(), block_tokens=8).restore([5] * length).tokens == 0


def test_absent_agent_means_computing_everything(tmp_path: Path) -> None:
    model = tiny()
    with Client(tmp_path / "nobody.sock") as client:
        kv = KVTierCache(client, model, block_tokens=8)
        cache, count, tiers = kv.restore(list(range(40)))
        assert (cache.get_seq_length(), count, tiers) == (0, 0, {})
        stored = kv.save(list(range(40)), computed(model, list(range(40))))
        assert (stored.stored_pages, stored.reached) == (0, None)


def test_layout_is_the_same_for_the_same_model_and_differs_otherwise(tmp_path: Path) -> None:
    client = Client(tmp_path / "nobody.sock")
    layouts = {
        name: KVTierCache(client, model, block_tokens=block).layout
        for name, model, block in [
            ("same", tiny(), 8),
            ("weights", tiny(seed=9), 8),
            ("dtype", tiny(dtype=torch.bfloat16), 8),
            ("block", tiny(), 16),
            ("rope", tiny(rope_parameters={"rope_type": "default", "rope_theta": 7777.0}), 8),
            ("attention", tiny(attn_implementation="eager"), 8),
        ]
    }
    assert len(set(layouts.values())) == len(layouts)
    assert KVTierCache(client, tiny(), block_tokens=8).layout == layouts["same"]


def test_one_changed_weight_changes_the_digest() -> None:
    model = tiny()
    before = compute_weights_digest(model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] += 1
    assert compute_weights_digest(model) != before


def test_model_with_an_adapter_shares_nothing(tmp_path: Path) -> None:
    model = tiny()
    model.peft_config = {"default": object()}
    client = Client(tmp_path / "nobody.sock")
    assert KVTierCache(client, model).layout != KVTierCache(client, model).layout


def test_model_with_a_sliding_window_is_refused(tmp_path: Path) -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="DynamicSlidingWindowLayer"):
        KVTierCache(Client(tmp_path / "nobody.sock"), model)


def test_cache_of_several_sequences_or_another_model_is_refused(tmp_path: Path) -> None:
    model = tiny()
    kv = KVTierCache(Client(tmp_path / "nobody.sock"), model, block_tokens=8)
    both = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(2, 10, dtype=torch.long), cache=both)
    with pytest.raises(ValueError, match=r"layer 0: expected \(1, 2, 0 or more, 8\) of torch.float32"):
        kv.save([1] * 10, both)
    with pytest.raises(ValueError, match=r"of torch.bfloat16"):
        kv.save([1] * 10, computed(tiny(dtype=torch.bfloat16), [1] * 10))
    with pytest.raises(ValueError, match="layer 0 of the cache is empty"):
        kv.save([1] * 10, DynamicCache(config=model.config))
    with pytest.raises(ValueError, match="token ids of one sequence"):
        kv.restore(torch.ones(2, 10, dtype=torch.long))


def test_digest_is_kept_beside_the_files_until_they_change(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    digest = cached_weights_digest(model, tmp_path)
    assert digest == compute_weights_digest(model)
    kept = json.loads((tmp_path / DIGEST_FILE).read_text())
    (tmp_path / DIGEST_FILE).write_text(json.dumps(kept | {"digest": "as kept"}))
    assert cached_weights_digest(model, tmp_path) == "as kept"
    assert cached_weights_digest(model.to(torch.bfloat16), tmp_path) != "as kept"

    (tmp_path / DIGEST_FILE).write_text(json.dumps(kept | {"digest": "as kept"}))
    tiny(seed=5).save_pretrained(tmp_path)
    assert cached_weights_digest(tiny(seed=5), tmp_path) == compute_weights_digest(tiny(seed=5))


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"identity": 1}'])
def test_damaged_digest_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    model = tiny()
    (tmp_path / DIGEST_FILE).write_text(damage)
    assert cached_weights_digest(model, tmp_path) == compute_weights_digest(model)
