"""Hugging Face transformers: a model's KV cache, restored from kvtier and saved to it.

    kv = KVTierCache(Client(), model)
    cache, restored, tiers = kv.restore(prompt)
    output = model(torch.tensor([prompt[restored:]]), cache=cache)  # past_key_values=cache before 5.24
    kv.save(prompt, output.cache, restored)

For models whose every layer attends to the whole prefix, one sequence at a time. A page holds one block,
C-contiguous, with the axes (layer, key or value, KV head, token of the block, head size), in the cache's
own element type: layout version `transformers/1`. Keys are stored as the cache has them, rotated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..client import Client
from ..protocol.keys import block_hashes
from ..protocol.messages import Reach, Tier
from ..results import Page, Stored
from ..staging import ALIGNMENT
from ..tensors import LayerKV, LayersFromPages, check_tensor, pages_from_layers
from .transformers_layout import UnsupportedModel, model_layout, page_shape

BATCH_BYTES = 16 << 20
"""Pages are copied out of the cache into staging, and put, in batches of about this size."""


class RestoredPrefix(NamedTuple):
    """What `restore` found."""

    cache: DynamicCache
    """Ready to be continued by the model; empty if nothing was found."""
    tokens: int
    """Leading tokens of the prompt that the cache covers."""
    tiers: Counter[Tier]
    """Blocks by the tier that they were in."""


class KVTierCache:
    """One model's way to the cache. Thread-safe as far as the model is."""

    def __init__(
        self,
        client: Client,
        model: PreTrainedModel,
        *,
        block_tokens: int = 16,
        weights_digest: str | None = None,
    ) -> None:
        """Reads all weights once, unless their digest is given (`transformers_layout.cached_weights_digest`).

        Raises UnsupportedModel (a ValueError) for a model with sliding windows, recurrent state or latents.
        """
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
        self._client = client
        self._model = model
        self.shape = page_shape(model, block_tokens)
        self._empty_cache()
        self.layout = model_layout(model, self.shape, weights_digest).fingerprint()

    def restore(self, token_ids: Sequence[int] | torch.Tensor, *, deadline_s: float = 10.0) -> RestoredPrefix:
        """The longest stored prefix of the prompt that leaves the model at least one token to compute.

        Whole blocks only, so a prompt of exactly k blocks restores k - 1 at most. Raises ValueError for anything but
        one sequence of token ids.
        """
        tokens = _as_list(token_ids)
        wanted = max(0, (len(tokens) - 1) // self.shape.block_tokens)
        hashes = block_hashes(tokens, self.shape.block_tokens)[:wanted]
        cache = self._empty_cache()
        # The lookup is what the pool's hit ratio counts, and says how much of what is there is worth restoring.
        hashes = hashes[: self._client.lookup(self.layout, hashes, deadline_s=deadline_s).offered_blocks]
        made = LayersFromPages(self.shape, len(hashes))
        filled = 0

        def fill(first_block: int, views: list[memoryview]) -> None:
            # A page of another size no layout of ours can have stored; what comes after it is left out as well.
            nonlocal filled
            pages = _leading(views, self.shape.page_bytes)
            if filled == first_block:
                made.fill(first_block, pages)
                filled += len(pages)

        restored = self._client.read(self.layout, hashes, fill, deadline_s=deadline_s)
        blocks = min(restored.blocks, filled)
        if blocks:
            self._fill(cache, made.layers(), blocks * self.shape.block_tokens)
        return RestoredPrefix(cache, blocks * self.shape.block_tokens, Counter(restored.tiers[:blocks]))

    def report_prefill(self, tokens: int, seconds: float, *, depth: int = 0) -> bool:
        """Tell how long the model took for `tokens` tokens behind the first `depth` of a prompt.

        From it the agent knows which prefixes are restored faster than they are computed. Whether it was told. Raises
        ValueError unless there were tokens, and they took time.
        """
        if tokens < 1 or not seconds > 0:
            raise ValueError(f"a prefill has tokens and takes time, not {tokens} tokens in {seconds} s")
        return self._client.report(
            self.layout,
            block_tokens=self.shape.block_tokens,
            prefill_tokens_per_s=tokens / seconds,
            at_depth=depth,
            bytes_per_token=self.shape.page_bytes / self.shape.block_tokens,
        )

    def save(
        self,
        token_ids: Sequence[int] | torch.Tensor,
        cache: DynamicCache,
        restored_tokens: int = 0,
        *,
        reach: Reach = Reach.DRAM,
        deadline_s: float = 30.0,
    ) -> Stored:
        """Store the full blocks of `token_ids` that `cache` covers, and that `restore` did not bring.

        Tokens beyond the cache, or cached ones beyond `token_ids`, are left out. The result counts what this call put.
        Raises ValueError when the cache is not one sequence of this model's.
        """
        tokens = _as_list(token_ids)
        layers = self._layers_of(cache)
        covered = min(len(tokens), cache.get_seq_length()) // self.shape.block_tokens
        hashes = block_hashes(tokens, self.shape.block_tokens)[:covered]
        first = min(restored_tokens // self.shape.block_tokens, covered)
        stored = self._put(hashes, first, layers, reach, deadline_s)
        if first and stored == Stored() and hashes[first:]:
            # What was restored may have been evicted since, and a chain cannot be continued without its start.
            still_there = self._client.lookup(self.layout, hashes[:first]).whole_blocks
            if still_there < first:
                stored = self._put(hashes, still_there, layers, reach, deadline_s)
        return stored

    def _put(self, hashes: list[bytes], first: int, layers: list[LayerKV], reach: Reach, deadline_s: float) -> Stored:
        """Put the blocks from `first` on, batch after batch; stop at the first that fails."""
        stride = -(-self.shape.page_bytes // ALIGNMENT) * ALIGNMENT
        batch = max(1, min(BATCH_BYTES, self._client.staging_bytes) // stride)
        total = Stored(reached=reach)
        for begin in range(first, len(hashes), batch):
            last = begin + batch >= len(hashes)
            part = hashes[begin : begin + batch]
            with self._client.staging(len(part) * stride, deadline_s=deadline_s) as memory:
                rows = np.frombuffer(memory, np.uint8).reshape(len(part), stride)[:, : self.shape.page_bytes]
                pages_from_layers(self.shape, layers, begin, len(part), rows)
                pages = [Page(value, row) for value, row in zip(part, rows, strict=True)]
                parent = hashes[begin - 1] if begin else None
                # How far the last block got, those before it have got.
                part_reach = reach if last else Reach.DRAM
                stored = self._client.put(self.layout, parent, pages, reach=part_reach, deadline_s=deadline_s)
            total = Stored(
                total.stored_pages + stored.stored_pages, total.known_pages + stored.known_pages, stored.reached
            )
            if stored.reached is None:
                break
        return total

    def _empty_cache(self) -> DynamicCache:
        """A cache for this model. Raises UnsupportedModel when not every layer grows with the prefix."""
        cache = DynamicCache(config=self._model.config)
        kinds = {type(layer) for layer in cache.layers}
        if kinds != {DynamicLayer} or len(cache.layers) != self.shape.layers:
            names = sorted(kind.__name__ for kind in kinds)
            raise UnsupportedModel(f"only {self.shape.layers} layers of full attention can be kept, this has {names}")
        return cache

    def _fill(self, cache: DynamicCache, layers: list[LayerKV], tokens: int) -> None:
        """Make the layers' first `tokens` tokens the content of an empty cache, without copying in CPU memory."""
        for index, (keys, values) in enumerate(layers):
            keys, values = (part[:, :, :tokens].to(self._model.device) for part in (keys, values))
            cache.update(keys[:, :, :0], values[:, :, :0], index)  # sets up the layer, whatever it has besides
            layer = cache.layers[index]
            if isinstance(layer, DynamicLayer):
                layer.keys, layer.values = keys, values

    def _layers_of(self, cache: DynamicCache) -> list[LayerKV]:
        layers: list[LayerKV] = []
        for number, layer in enumerate(cache.layers):
            if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
                raise ValueError(f"layer {number} of the cache is empty, or not one of full attention")
            for tensor in (layer.keys, layer.values):
                check_tensor(self.shape, tensor, 0, f"layer {number}")
            layers.append((layer.keys, layer.values))
        if len(layers) != self.shape.layers:
            raise ValueError(f"the cache has {len(layers)} layers, the model {self.shape.layers}")
        return layers


def _leading(views: list[memoryview], page_bytes: int) -> list[memoryview]:
    """The views before the first one of another size, which no layout of ours can have stored."""
    for index, view in enumerate(views):
        if view.nbytes != page_bytes:
            return views[:index]
    return views


def _as_list(token_ids: Sequence[int] | torch.Tensor) -> list[int]:
    if not isinstance(token_ids, torch.Tensor):
        return [int(token) for token in token_ids]
    if token_ids.dim() not in (1, 2) or (token_ids.dim() == 2 and token_ids.shape[0] != 1):
        raise ValueError(f"expected the token ids of one sequence, got a tensor of {tuple(token_ids.shape)}")
    tokens: list[Any] = token_ids.flatten().tolist()
    return tokens
