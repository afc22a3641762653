"""A policy at work: the store's index itself, with as many slots as the cache has blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvtier_index import Index

from .trace import Trace

POLICIES: Final = ("default", "lru")
"""As `evictionPolicy` of a CachePool names them."""

_LAYOUT: Final = bytes(32)
_KEY: Final = (0, 0, 0)
_PAGE_BYTES: Final = 4096
_SLOT_HEADER_BYTES: Final = 512
_DIGEST: Final = bytes(16)


class Cache:
    """The index, with `capacity` slots. Its clock is the caller's, in seconds."""

    def __init__(self, policy: str, capacity: int) -> None:
        self._capacity = capacity
        self._index = Index(policy)
        self._index.add_chunk(0, _PAGE_BYTES, capacity, _PAGE_BYTES, _PAGE_BYTES, _SLOT_HEADER_BYTES, b"")

    def request(self, hashes: Sequence[bytes], now: float) -> int:
        """How many of the prompt's leading blocks are there.

        All of them are stored after that, in chain order, as far as there is room beside its own.
        """
        hold = self._index.hold(_LAYOUT, list(hashes), [_KEY], now)
        known = hold.blocks
        hold.release()
        pages = [(hash_, *_KEY, _PAGE_BYTES) for hash_ in hashes[known:]]
        if pages:
            parent = hashes[known - 1] if known else None
            taken, _, _ = self._index.reserve(_LAYOUT, parent, pages, 0, len(pages), now, self._capacity)
            self._index.commit([page for _, page in taken], _DIGEST * len(taken))
        return known


def hit_blocks(trace: Trace, policy: str, capacity: int) -> int:
    """Blocks found, over all requests, by a cache of `capacity` blocks that sees one request a second."""
    cache = Cache(policy, capacity)
    return sum(
        cache.request([block.to_bytes(16, "little") for block in blocks], float(number))
        for number, blocks in enumerate(trace.requests)
    )
