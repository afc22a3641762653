"""Which bytes of a stopped store's files belong to a live page, its header or a summary. All that knows the formats.

The formats' page: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from kvtier_agent.store.arena_format import (
    CHUNK_HEADER_BYTES,
    PAGE,
    SLOT_HEADER_BYTES,
    decode_chunk_header,
    decode_slot,
)
from kvtier_agent.store.segments import (
    ENTRY_BYTES,
    SEGMENT_HEADER_BYTES,
    decode_run_header,
    decode_summary,
    decode_trailer,
    peek_run_header,
)
from kvtier_client.protocol.messages import PageId

from tests.chaos.store_process import StorePlace
from tests.chaos.workload import SHAPES, BlockHash, PageKey

_RUN_ENTRIES_AT: Final = 64


class Where(StrEnum):
    """What a byte belongs to."""

    MEDIUM_PAYLOAD = "payload on the medium"
    MEDIUM_HEADER = "header on the medium"
    SUMMARY = "summary"
    SLOT_HEADER = "slot header"


class Region(NamedTuple):
    """Bytes of one page in a file."""

    where: Where
    key: PageKey
    file: Path
    offset: int
    length: int


def medium_regions(place: StorePlace) -> Iterator[Region]:
    """All pages, page headers and summary entries of the nvme tier."""
    for uid, pool in place.pool_uids.items():
        for file in sorted((place.media / uid).glob("*.seg")):
            data = file.read_bytes()
            yield from _runs(pool, file, data, int(file.stem, 16))
            yield from _summary(pool, file, data, int(file.stem, 16))


def _runs(pool: str, file: Path, data: bytes, sequence: int) -> Iterator[Region]:
    offset = SEGMENT_HEADER_BYTES
    while offset + PAGE <= len(data):
        header_bytes = peek_run_header(data[offset : offset + PAGE], sequence, offset, len(data))
        run = decode_run_header(data[offset : offset + header_bytes], offset) if header_bytes else None
        if run is None:
            return
        for index, it in enumerate(run.entries):
            key = _key(pool, it.layout, it.hash, PageId(it.group, it.shard))
            yield Region(Where.MEDIUM_PAYLOAD, key, file, it.offset, it.size)
            header = offset + _RUN_ENTRIES_AT + index * ENTRY_BYTES
            yield Region(Where.MEDIUM_HEADER, key, file, header, ENTRY_BYTES)
        offset += run.run_bytes


def _summary(pool: str, file: Path, data: bytes, sequence: int) -> Iterator[Region]:
    trailer = decode_trailer(data[-PAGE:], sequence, len(data))
    if trailer is None:
        return
    offset, length, checksum = trailer
    for index, it in enumerate(decode_summary(data[offset : offset + length], checksum) or ()):
        key = _key(pool, it.layout, it.hash, PageId(it.group, it.shard))
        yield Region(Where.SUMMARY, key, file, offset + index * ENTRY_BYTES, ENTRY_BYTES)


def arena_regions(place: StorePlace) -> Iterator[Region]:
    """The headers of all committed slots."""
    for uid, pool in place.pool_uids.items():
        for file in sorted((place.arena / uid).glob("*.chunk")):
            data = file.read_bytes()
            cut = decode_chunk_header(str(file), data[:CHUNK_HEADER_BYTES], int(file.stem, 16), uid, len(data))
            for slot in range(cut.slots):
                at = cut.header_offset(slot)
                _, it = decode_slot(data[at : at + SLOT_HEADER_BYTES], cut.slot_bytes)
                if it is not None:
                    key = _key(pool, it.layout, it.hash, PageId(it.group, it.shard))
                    yield Region(Where.SLOT_HEADER, key, file, at, SLOT_HEADER_BYTES)


def _key(pool: str, layout: bytes, block: bytes, page: PageId) -> PageKey:
    shape = next(it for it in SHAPES if (it.pool, it.fingerprint) == (pool, layout))
    return PageKey(shape.name, BlockHash(block), page)
