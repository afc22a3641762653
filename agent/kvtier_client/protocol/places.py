"""Which pages a prefix needs, and the records that say where they lie. Pure; used by both sides.

A prefix of B blocks needs each `full` page of every block, and a `trailing(n)` page of its last n blocks only.
A get's reply names them block after block, and within a block as they were asked. The format's page:
docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import starmap
from typing import Final, NamedTuple

from .messages import MAX_BLOCKS, PageId, Tier

PLACE: Final = struct.Struct("<QQQQII")
"""One place: chunk, offset of the payload in the chunk's file, offset of the slot's generation there, the
generation, payload bytes, and where the page was when the request came (an index into TIERS)."""

TIERS: Final = (Tier.DRAM, Tier.NVME)

PlaceTuple = tuple[int, int, int, int, int, int]
"""The fields of a PagePlace."""


class PagePlace(NamedTuple):
    """Where a held page lies in the arena."""

    chunk: int
    offset: int
    """Of the payload in the chunk's file, in bytes."""
    size: int
    """Payload bytes."""
    generation_offset: int
    """Of the slot's 64-bit little-endian generation in the chunk's file."""
    generation: int
    """The copy is good if the slot still shows this number after it."""
    tier: int
    """Where the page was when the request came: an index into TIERS."""


def pack_places(places: Iterable[PlaceTuple]) -> bytes:
    """The records of a reply."""
    return b"".join(starmap(_pack_place, places))


def _pack_place(chunk: int, offset: int, size: int, generation_offset: int, generation: int, tier: int) -> bytes:
    return PLACE.pack(chunk, offset, generation_offset, generation, size, tier)


def unpack_places(records: bytes) -> Iterator[PagePlace]:
    """The places of a reply, one by one.

    Raises struct.error when `records` is not a whole number of them.
    """
    for chunk, offset, generation_offset, generation, size, tier in PLACE.iter_unpack(records):
        yield PagePlace(chunk, offset, size, generation_offset, generation, tier)


def needs_page(page: PageId, block: int, blocks: int) -> bool:
    """Whether a prefix of `blocks` blocks needs this page of its block number `block`."""
    return not page.trailing or block >= blocks - page.trailing


def place_count(blocks: int, pages: Sequence[PageId]) -> int:
    """How many pages a prefix of `blocks` blocks needs: as many places has the reply."""
    return sum(min(page.trailing, blocks) if page.trailing else blocks for page in pages)


def needed_pages(blocks: int, pages: Sequence[PageId]) -> Iterator[tuple[int, PageId]]:
    """Block number and page of each place of a reply, in its order."""
    for block in range(blocks):
        for page in pages:
            if needs_page(page, block, blocks):
                yield block, page


@lru_cache(maxsize=64)
def most_blocks(pages: tuple[PageId, ...]) -> int:
    """How many blocks one request for `pages` may name: at most MAX_BLOCKS hashes, and as many places."""
    low, high = 0, MAX_BLOCKS
    while low < high:
        middle = (low + high + 1) // 2
        if place_count(middle, pages) <= MAX_BLOCKS:
            low = middle
        else:
            high = middle - 1
    return low


def blocks_kept(blocks: int, pages: Sequence[PageId], good_places: int) -> int:
    """How many leading blocks are whole when only the first `good_places` of a reply's places are good.

    With a trailing page that the reply left out for early blocks, a shorter prefix would need pages that are not
    there: then it is all or nothing.
    """
    if good_places >= place_count(blocks, pages):
        return blocks
    if any(page.trailing and page.trailing < blocks for page in pages):
        return 0
    return good_places // len(pages)
