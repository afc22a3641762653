"""Chains and pages to store: the same ones for the same seed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from kvtier_client.protocol.messages import LAYOUT_BYTES
from kvtier_client.results import Page

LAYOUT: Final = b"kvtier bench".ljust(LAYOUT_BYTES, b"\0")
HASH_BYTES: Final = 32
_BASE_BYTES: Final = 16 << 20


def chain_hashes(seed: int, blocks: int, part: int = 0) -> list[bytes]:
    """Block hashes of a chain of its own; another `part` is another chain."""
    data = np.random.default_rng([seed, part]).bytes(HASH_BYTES * blocks)
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


class Payloads:
    """The right bytes of every page, told by its hash: a window of random bytes, so that nothing is made per page."""

    def __init__(self, page_bytes: int, seed: int = 7) -> None:
        self.page_bytes = page_bytes
        self._base = memoryview(np.random.default_rng(seed).bytes(_BASE_BYTES + page_bytes))

    def of(self, block_hash: bytes) -> memoryview:
        """The page of this block."""
        begin = int.from_bytes(block_hash[:8], "little") % (_BASE_BYTES // 8) * 8
        return self._base[begin : begin + self.page_bytes]

    def pages(self, hashes: Sequence[bytes]) -> list[Page]:
        """Pages of these blocks, as `Client.put` takes them."""
        return [Page(block_hash, self.of(block_hash)) for block_hash in hashes]

    def wrong(self, hashes: Sequence[bytes], views: Sequence[memoryview]) -> int:
        """How many of `views` are not the page of the block in the same place."""
        return sum(
            not np.array_equal(np.frombuffer(view, np.uint8), np.frombuffer(self.of(block_hash), np.uint8))
            for block_hash, view in zip(hashes, views, strict=True)
        )


def growth_turns(chains: int, turns: int, blocks_per_turn: int) -> list[tuple[int, int, int]]:
    """The order in which chains that are used at once grow: (chain, first block, end) of each put."""
    return [
        (chain, turn * blocks_per_turn, (turn + 1) * blocks_per_turn)
        for turn in range(turns)
        for chain in range(chains)
    ]
