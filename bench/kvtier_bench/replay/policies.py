"""A policy at work: the store's index itself, with as many slots as the cache has blocks."""

from __future__ import annotations

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


def hit_blocks(trace: Trace, policy: str, capacity: int) -> int:
    """Blocks found, over all requests, by a cache of `capacity` blocks: each request's longest prefix that is there.

    All blocks of a request are stored after it, in chain order, as far as there is room beside its own.
    """
    index = Index(policy)
    index.add_chunk(0, _PAGE_BYTES, capacity, _PAGE_BYTES, _PAGE_BYTES, _SLOT_HEADER_BYTES, b"")
    found = 0
    for number, blocks in enumerate(trace.requests):
        hashes = [block.to_bytes(16, "little") for block in blocks]
        now = float(number)
        hold = index.hold(_LAYOUT, hashes, [_KEY], now)
        known = hold.blocks
        hold.release()
        found += known
        pages = [(hash_, *_KEY, _PAGE_BYTES) for hash_ in hashes[known:]]
        if pages:
            parent = hashes[known - 1] if known else None
            taken, _, _ = index.reserve(_LAYOUT, parent, pages, 0, len(pages), now, capacity)
            index.commit([page for _, page in taken], _DIGEST * len(taken))
    return found
