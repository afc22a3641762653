"""Which bytes of a stopped store's files belong to a live page, its header or a summary. All that knows the formats.

The formats' page: docs/formats.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from kvtier_agent.store.arena_format import (
    CHUNK_HEADER_BYTES,
    PAGE,
    SLOT_FIELDS_END,
    SLOT_HEADER_BYTES,
    decode_chunk_header,
    decode_slot,
)
from kvtier_agent.store.checksums import header_checksum
from kvtier_agent.store.nvme.device import DEVICE_FILE, decode_superblock
from kvtier_agent.store.nvme.segments import (
    ENTRY_BYTES,
    ENTRY_TYPE,
    LAYOUT_BYTES,
    Entries,
    SegmentId,
    candidate_runs,
    decode_run_header,
    decode_segment_header,
    decode_summary,
    decode_trailer,
    peek_run_header,
)
from kvtier_client.protocol.messages import PageId

from tests.chaos.store_process import StorePlace
from tests.chaos.workload import SHAPES, BlockHash, PageKey

_RUN_ENTRIES_AT: Final = 128


class Where(StrEnum):
    """What a byte belongs to."""

    MEDIUM_PAYLOAD = "payload on the medium"
    MEDIUM_HEADER = "header on the medium"
    SUMMARY = "summary"
    SLOT_HEADER = "slot header"
    SLOT_PAYLOAD = "payload in the arena"


class Region(NamedTuple):
    """Bytes of one page in a file."""

    where: Where
    key: PageKey
    file: Path
    offset: int
    length: int


def medium_file(place: StorePlace) -> Path:
    """What the nvme tier lies in: the block device, or the file in its folder."""
    return place.raw or place.media / DEVICE_FILE


class Unit(NamedTuple):
    """A unit of a device that has a segment."""

    file: Path
    offset: int
    length: int
    segment: SegmentId


def find_units(place: StorePlace) -> list[Unit]:
    """The units that have a segment, the oldest first."""
    path = medium_file(place)
    found = []
    with path.open("rb") as file:
        block = decode_superblock(str(path), file.read(PAGE))
        assert block is not None, f"{path} has no superblock"
        for unit in range(block.units):
            file.seek(block.unit_at(unit))
            segment = decode_segment_header(str(path), file.read(PAGE), unit, block.unit_bytes)
            if segment is not None:
                found.append(Unit(path, block.unit_at(unit), block.unit_bytes, segment))
    return sorted(found, key=lambda it: it.segment.sequence)


def medium_regions(place: StorePlace) -> Iterator[Region]:
    """All pages, page headers and summary entries of the nvme tier."""
    for unit in find_units(place):
        pool = place.pool_uids[unit.segment.pool_uid]
        with unit.file.open("rb") as file:
            file.seek(unit.offset)
            data = memoryview(file.read(unit.length))
        for where, key, at, size in (*_runs(pool, data, unit.segment), *_summary(pool, data, unit.segment)):
            yield Region(where, key, unit.file, unit.offset + at, size)


def renumber(file: Path, offset: int) -> None:
    """Give the page with a chunk's, a device's or a segment's header the format number 7, intact."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        page = bytearray(opened.read(PAGE))
        page[8:12] = struct.pack("<I", 7)
        page[-8:] = struct.pack("<Q", header_checksum(bytes(page[:-8])))
        opened.seek(offset)
        opened.write(page)


_Found = tuple[Where, PageKey, int, int]


def _runs(pool: str, data: memoryview, segment: SegmentId) -> Iterator[_Found]:
    end = 0
    for offset in candidate_runs(data, segment):
        header_bytes = peek_run_header(data[offset : offset + PAGE], segment, offset, len(data))
        run = decode_run_header(data[offset : offset + header_bytes], offset) if header_bytes else None
        if run is None or offset < end:
            continue
        end = offset + run.run_bytes
        keys = _keys(pool, run.entries, run.layout)
        for index, (key, it) in enumerate(zip(keys, run.entries, strict=True)):
            yield Where.MEDIUM_PAYLOAD, key, int(it["offset"]) * PAGE, int(it["size"])
            yield Where.MEDIUM_HEADER, key, offset + _RUN_ENTRIES_AT + index * ENTRY_BYTES, ENTRY_BYTES


def _summary(pool: str, data: memoryview, segment: SegmentId) -> Iterator[_Found]:
    place = decode_trailer(data[-PAGE:], segment, len(data))
    tables = decode_summary(data[place.offset : place.offset + place.body_bytes], place) if place else None
    if place is None or tables is None:
        return
    layouts, entries = tables[0], _entries(tables[1])
    for index, it in enumerate(entries):
        number = int(it["layout"])
        layout = layouts[number * LAYOUT_BYTES : (number + 1) * LAYOUT_BYTES]
        (key,) = _keys(pool, entries[index : index + 1], layout)
        yield Where.SUMMARY, key, place.offset + len(layouts) + index * ENTRY_BYTES, ENTRY_BYTES


def _entries(packed: bytes) -> Entries:
    return np.frombuffer(packed, ENTRY_TYPE)


def _keys(pool: str, entries: Entries, layout: bytes) -> list[PageKey]:
    return [
        _key(pool, layout, bytes(it["hash"])[: int(it["hash_bytes"])], PageId(int(it["group"]), int(it["shard"])))
        for it in entries
    ]


def arena_regions(place: StorePlace) -> Iterator[Region]:
    """The payloads and headers of all committed slots."""
    for uid, pool in place.pool_uids.items():
        for file in sorted((place.arena / uid).glob("*.chunk")):
            data = file.read_bytes()
            cut = decode_chunk_header(str(file), data[:CHUNK_HEADER_BYTES], int(file.stem, 16), uid, len(data))
            for slot in range(cut.slots):
                at = cut.header_offset(slot)
                _, it, _ = decode_slot(data[at : at + SLOT_HEADER_BYTES], cut.slot_bytes)
                if it is not None:
                    key = _key(pool, it.layout, it.hash, PageId(it.group, it.shard))
                    yield Region(Where.SLOT_HEADER, key, file, at, SLOT_FIELDS_END)
                    yield Region(Where.SLOT_PAYLOAD, key, file, cut.payload_offset(slot), it.size)


def _key(pool: str, layout: bytes, block: bytes, page: PageId) -> PageKey:
    shape = next(it for it in SHAPES if (it.pool, it.fingerprint) == (pool, layout))
    return PageKey(shape.name, BlockHash(block), page)
