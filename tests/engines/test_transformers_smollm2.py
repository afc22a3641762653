"""SmolLM2-135M through transformers: what is restored continues exactly as what was computed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from kvtier_client import Client, Page, Reach, Tier, block_hashes
from kvtier_client.connectors.transformers import KVTierCache
from kvtier_client.connectors.transformers_layout import cached_weights_digest
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from dev.engine_model import ensure_model
from tests.unit.client.peer import LAYOUT as OTHER_LAYOUT
from tests.unit.client.peer import chain
from tests.unit.client.real_store import real_store

BLOCK = 16
BLOCKS = 10
ANSWER_TOKENS = 12
DEADLINE_S = 60.0
TEXT = "A log of the cooling plant, hour by hour, with the readings of every pump and valve in its halls. "


@dataclass
class Engine:
    """A model beside a store of its own."""

    model: PreTrainedModel
    kv: KVTierCache
    client: Client
    text: list[int]
    fillers: Iterator[int] = field(default_factory=itertools.count)

    def prompt(self, first_token: int, tokens: int) -> list[int]:
        return [first_token, *self.text[: tokens - 1]]

    @torch.no_grad()
    def answer(self, prompt: list[int], cache: DynamicCache, restored: int) -> list[int]:
        """The greedy continuation of `prompt`, of which `cache` covers `restored` tokens."""
        tokens: list[int] = []
        fresh = prompt[restored:]
        for _ in range(ANSWER_TOKENS):
            logits = self.model(torch.tensor([fresh]), cache=cache, use_cache=True).logits
            tokens.append(int(logits[0, -1].argmax()))
            fresh = tokens[-1:]
        return tokens

    def compute(self, prompt: list[int]) -> tuple[list[int], DynamicCache]:
        cache = DynamicCache(config=self.model.config)
        return self.answer(prompt, cache, 0), cache

    def push_out_of_dram(self, prompt: list[int]) -> None:
        """Store pages of another layout until the prompt's first block is not in DRAM any more."""
        hashes = block_hashes(prompt, BLOCK)
        data = bytes(1 << 20)
        for _ in range(20):
            if not self.client.lookup(self.kv.layout, hashes).dram_blocks:
                return
            pages = [Page(value, data) for value in chain(16, next(self.fillers))]
            assert self.client.put(OTHER_LAYOUT, None, pages, deadline_s=DEADLINE_S).reached
        raise AssertionError("the prompt stayed in DRAM")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    torch.set_num_threads(1)  # other work on the machine would make threads wait for each other
    folder = ensure_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = AutoTokenizer.from_pretrained(folder)(TEXT * 12)["input_ids"]
    with (
        real_store(tmp_path_factory.mktemp("store"), dram="48Mi", nvme="1Gi") as store,
        Client(store.socket, deadline_s=DEADLINE_S) as client,
    ):
        kv = KVTierCache(client, model, block_tokens=BLOCK, weights_digest=cached_weights_digest(model, folder))
        yield Engine(model, kv, client, text)


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_prompt_around_whole_blocks_answers_the_same_cold_and_restored(engine: Engine, surplus: int) -> None:
    prompt = engine.prompt(100 + surplus, BLOCKS * BLOCK + surplus)
    expected, computed = engine.compute(prompt)
    cold = engine.kv.restore(prompt, deadline_s=DEADLINE_S)
    assert (cold.tokens, cold.tiers) == (0, {})
    blocks = len(prompt) // BLOCK
    stored = engine.kv.save(prompt, computed, reach=Reach.FLUSHED, deadline_s=DEADLINE_S)
    assert (stored.stored_pages, stored.reached) == (blocks, Reach.FLUSHED)

    usable = (len(prompt) - 1) // BLOCK
    for tier in (Tier.DRAM, Tier.NVME):
        if tier is Tier.NVME:
            engine.push_out_of_dram(prompt)
        cache, restored, tiers = engine.kv.restore(prompt, deadline_s=DEADLINE_S)
        # Which pages leave DRAM first is the policy's affair: the first block has, and so have most.
        assert (restored, sum(tiers.values())) == (usable * BLOCK, usable)
        assert tiers[tier] > usable // 2
        assert engine.answer(prompt, cache, restored) == expected
    assert not engine.client.misses


def test_prompt_with_another_first_token_restores_nothing(engine: Engine) -> None:
    prompt = engine.prompt(200, BLOCKS * BLOCK)
    engine.kv.save(prompt, engine.compute(prompt)[1], deadline_s=DEADLINE_S)
    assert engine.kv.restore(prompt, deadline_s=DEADLINE_S).tokens == (BLOCKS - 1) * BLOCK
    assert engine.kv.restore(engine.prompt(201, BLOCKS * BLOCK), deadline_s=DEADLINE_S).tokens == 0


def test_longer_prompt_restores_what_a_shorter_one_left_and_adds_the_rest(engine: Engine) -> None:
    short, long = engine.prompt(300, 5 * BLOCK), engine.prompt(300, 9 * BLOCK + 3)
    engine.kv.save(short, engine.compute(short)[1], deadline_s=DEADLINE_S)
    expected, _ = engine.compute(long)
    cache, restored, _ = engine.kv.restore(long, deadline_s=DEADLINE_S)
    assert restored == 5 * BLOCK
    assert engine.answer(long, cache, restored) == expected
    assert engine.kv.save(long, cache, restored, deadline_s=DEADLINE_S).stored_pages == 4
    assert engine.kv.restore(long, deadline_s=DEADLINE_S).tokens == 9 * BLOCK
