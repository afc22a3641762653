"""What a unit holds, from its summary or else from its runs; and sealing one. Blocking; for device movers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..arena_format import PAGE, round_up
from ..checksums import page_checksum, payload_digest
from .blocks import aligned, buffer, read_all, write_all
from .device import OpenDevice
from .segments import (
    HEADER_BYTES,
    Run,
    SegmentId,
    candidate_runs,
    decode_run_header,
    decode_summary,
    decode_trailer,
    encode_summary,
    peek_run_header,
)

_READ_BYTES: Final = 4 << 20


class Contents(NamedTuple):
    """The pages of a segment."""

    layouts: bytes
    entries: bytes
    """Packed; their layout numbers point into `layouts`."""
    sealed: bool
    runs: list[tuple[int, int]]
    """Offset and header bytes of each run of an unsealed segment."""
    end: int
    lost: int
    """Pages whose payload does not match: torn by a crash, or damaged."""


def read_contents(device: OpenDevice, unit: int, segment: SegmentId) -> Contents:
    """A sealed segment's summary is believed, if its checksum matches. Raises OSError."""
    unit_bytes, start = device.superblock.unit_bytes, device.superblock.unit_at(unit)
    page = buffer(PAGE)
    read_all(device.fd, [page], start + unit_bytes - PAGE)
    place = decode_trailer(page, segment, unit_bytes)
    if place is not None:
        body = buffer(round_up(place.body_bytes, PAGE))
        read_all(device.fd, [body], start + place.offset)
        tables = decode_summary(body, place)
        if tables is not None:
            return Contents(*tables, True, [], place.offset, 0)
    return _scan(device, unit, segment)


def _scan(device: OpenDevice, unit: int, segment: SegmentId) -> Contents:
    """Read the whole unit in large pieces, and check every run's header and every payload.

    Writes since the last flush may have arrived in any order, in part, or not at all. What lies inside a run that is
    believed is payload, whatever it looks like.
    """
    unit_bytes, start = device.superblock.unit_bytes, device.superblock.unit_at(unit)
    image = buffer(unit_bytes)
    for at in range(0, unit_bytes, _READ_BYTES):
        read_all(device.fd, [image[at : min(at + _READ_BYTES, unit_bytes)]], start + at)
    numbers: dict[bytes, int] = {}
    parts: list[bytes] = []
    runs: list[tuple[int, int]] = []
    end, lost = HEADER_BYTES, 0
    for offset in candidate_runs(image, segment):
        if offset < end:
            continue
        header_bytes = peek_run_header(image[offset : offset + PAGE], segment, offset, unit_bytes)
        run = decode_run_header(image[offset : offset + header_bytes], offset) if header_bytes else None
        if run is None:
            continue
        good = _intact(image, segment, run)
        entries = run.entries[good]
        lost += len(run.entries) - len(entries)
        if len(entries):
            entries["layout"] = numbers.setdefault(run.layout, len(numbers))
            parts.append(entries.tobytes())
            runs.append((offset, run.header_bytes))
        end = offset + run.run_bytes
    return Contents(b"".join(numbers), b"".join(parts), False, runs, end, lost)


def _intact(image: memoryview, segment: SegmentId, run: Run) -> list[int]:
    """Indices of a run's pages whose payload is what their entry says."""
    entries = run.entries
    columns = [entries[name].tolist() for name in ("offset", "size", "hash_bytes", "group", "shard")]
    texts = [entries[name].tolist() for name in ("hash", "digest", "checksum")]
    good = []
    for index, (page, size, hash_bytes, group, shard, hash_, digest, checksum) in enumerate(
        zip(*columns, *texts, strict=True)
    ):
        found = payload_digest(image[page * PAGE : page * PAGE + size])
        name = hash_[:hash_bytes]
        if found == digest and checksum == page_checksum(
            segment.pool_uid, run.layout, name, group, shard, segment.sequence, found
        ):
            good.append(index)
    return good


def seal(device: OpenDevice, unit: int, segment: SegmentId, runs: Sequence[tuple[int, int]]) -> int:
    """Write the summary of these runs, whose payloads are taken to be there; returns how many headers were damaged.

    Raises OSError, ValueError where it does not fit.
    """
    unit_bytes, start = device.superblock.unit_bytes, device.superblock.unit_at(unit)
    tables: list[tuple[bytes, bytes]] = []
    end = HEADER_BYTES
    for offset, header_bytes in sorted(runs):
        head = buffer(header_bytes)
        read_all(device.fd, [head], start + offset)
        run = None
        if peek_run_header(head, segment, offset, unit_bytes) == header_bytes:
            run = decode_run_header(head, offset)
        if run is not None:
            tables.append((run.layout, run.entries.tobytes()))
            end = max(end, offset + run.run_bytes)
    offset, summary = encode_summary(segment, tables, unit_bytes, end)
    write_all(device.fd, [aligned(summary)], start + offset)
    return len(runs) - len(tables)


def split_entries(entries: bytes, part_bytes: int, entry_bytes: int) -> list[bytes]:
    """The entries in parts of at most `part_bytes`; one empty part where there are none."""
    step = part_bytes // entry_bytes * entry_bytes
    return [entries[at : at + step] for at in range(0, len(entries), step)] or [b""]
