"""Media format 1 inside a unit: segment header, runs, summary. The format's page: docs/formats.md.

Pure: bytes in, values out. Entries stay packed, one array of them per run or summary (ENTRY_TYPE).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ..arena_format import PAGE, round_up
from ..checksums import ALGORITHM_XXH3, header_checksum, page_checksum
from ..errors import FormatRefused
from ..refs import Ref

MEDIA_FORMAT: Final = 1
HEADER_BYTES: Final = PAGE
TRAILER_BYTES: Final = PAGE
MAX_RUN_BYTES: Final = 8 << 20
"""Of a run's payloads, unless it is a single larger page."""
MAX_RUN_PAGES: Final = 1000
"""One vectored call takes 1,024 pieces."""
NONCE_BYTES: Final = 8
SEGMENT_MAGIC: Final = b"KVTSEGMT"
RUN_MAGIC: Final = b"KVTRUNHD"
TRAILER_MAGIC: Final = b"KVTSUMMA"

_SEGMENT: Final = struct.Struct("<8sIIQ8sIIQB128s")
_RUN: Final = struct.Struct("<8sIIQ8sIIQQQ32s")
_RUN_ENTRIES_AT: Final = 128
_TRAILER: Final = struct.Struct("<8sIIQ8sIIQQ16s")
_CHECK: Final = struct.Struct("<Q")
_CHECK_AT: Final = PAGE - _CHECK.size
_ENTRY: Final = struct.Struct("<64s64s16s16sQIIIIIIHHBB2x")
ENTRY_BYTES: Final = _ENTRY.size
LAYOUT_BYTES: Final = 32

ENTRY_TYPE: Final = np.dtype(
    [
        ("hash", "V64"),
        ("parent", "V64"),
        ("digest", "V16"),
        ("checksum", "V16"),
        ("serial", "<u8"),
        ("offset", "<u4"),
        ("size", "<u4"),
        ("stored_at", "<u4"),
        ("group", "<u4"),
        ("trailing", "<u4"),
        ("depth", "<u4"),
        ("layout", "<u2"),
        ("shard", "<u2"),
        ("hash_bytes", "u1"),
        ("parent_bytes", "u1"),
        ("", "V2"),
    ]
)
"""A packed entry. `offset` is in pages of 4,096; `layout` is a number in the summary's table of layouts."""

Entries = npt.NDArray[Any]


class SegmentId(NamedTuple):
    """What tells a segment from whatever lay in its unit before."""

    pool_uid: str
    sequence: int
    """The generation of every page in it."""
    nonce: bytes
    """Random, so that no payload can pass for a run header of a segment that comes later."""


class Run(NamedTuple):
    """A decoded run header."""

    offset: int
    """In the unit."""
    run_bytes: int
    header_bytes: int
    layout: bytes
    entries: Entries


class SummaryPlace(NamedTuple):
    """Where a trailer says that the summary lies, and its checksum."""

    offset: int
    body_bytes: int
    layouts: int
    checksum: bytes


def run_header_bytes(pages: int) -> int:
    """Bytes at a run's head."""
    return round_up(_RUN_ENTRIES_AT + pages * ENTRY_BYTES, PAGE)


class RunSizes:
    """Sizes of pages in chain order, and what a run of the first of them takes. Immutable."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._ends = list(accumulate([round_up(size, PAGE) for size in sizes], initial=0))
        """Payload bytes of the first pages, from none of them on, each rounded up."""

    def __len__(self) -> int:
        return len(self.sizes)

    def payload_bytes(self, start: int, stop: int) -> int:
        """Of pages start..stop, each rounded up."""
        return self._ends[stop] - self._ends[start]

    def run_bytes(self, pages: int) -> int:
        """Of a run of the first `pages`."""
        return run_header_bytes(pages) + self._ends[pages]

    def places(self, offset: int, pages: int) -> list[int]:
        """Where the payloads of the first `pages` lie in a run of them at `offset` of its unit."""
        first = offset + run_header_bytes(pages)
        return [first + end for end in self._ends[:pages]]

    def fit(self, room: int) -> int:
        """How many of the first pages one run takes in `room` bytes; one page may be larger than a run is otherwise."""
        most = min(len(self), MAX_RUN_PAGES)
        most = max(min(most, 1), bisect_right(self._ends, MAX_RUN_BYTES, hi=most + 1) - 1)
        return bisect_right(range(1, most + 1), room, key=self.run_bytes)


def run_bytes(sizes: Sequence[int]) -> int:
    """Bytes that a run of pages of these sizes takes."""
    return RunSizes(sizes).run_bytes(len(sizes))


def run_places(offset: int, sizes: Sequence[int]) -> list[int]:
    """Where the payloads of a run at `offset` of its unit lie."""
    return RunSizes(sizes).places(offset, len(sizes))


def summary_bytes(pages: int, layouts: int) -> int:
    """Bytes that the summary of so many pages takes, trailer included."""
    return round_up(pages * ENTRY_BYTES + layouts * LAYOUT_BYTES, PAGE) + TRAILER_BYTES


def encode_segment_header(segment: SegmentId, unit: int, unit_bytes: int) -> bytes:
    """The first page of a unit that has a segment."""
    uid = segment.pool_uid.encode()
    head = _SEGMENT.pack(
        SEGMENT_MAGIC,
        MEDIA_FORMAT,
        ALGORITHM_XXH3,
        segment.sequence,
        segment.nonce,
        unit,
        0,
        unit_bytes,
        len(uid),
        uid,
    )
    return _with_check(head)


def decode_segment_header(where: str, data: bytes | memoryview, unit: int, unit_bytes: int) -> SegmentId | None:
    """The segment of this unit; None: it is free, or its header is torn or damaged.

    Raises FormatRefused when the header is intact and of another format.
    """
    magic, format_, algorithm, sequence, nonce, at, _, size, uid_bytes, uid = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or not _is_checked(data):
        return None
    if (format_, algorithm) != (MEDIA_FORMAT, ALGORITHM_XXH3):
        raise FormatRefused(where, f"media format {MEDIA_FORMAT}", f"format {format_}, checksum {algorithm}")
    if (at, size) != (unit, unit_bytes):
        return None
    return SegmentId(uid[:uid_bytes].decode(errors="replace"), sequence, nonce)


def make_entries(segment: SegmentId, refs: Sequence[Ref], offset: int, serial: int) -> bytes:
    """The entries of a run of these pages at `offset` of the segment's unit."""
    places = run_places(offset, [ref.size for ref in refs])
    uid, _, _ = segment
    return b"".join(
        _ENTRY.pack(
            ref.hash,
            ref.parent,
            ref.digest,
            page_checksum(uid, ref.layout, ref.hash, ref.group, ref.shard, segment.sequence, ref.digest),
            serial,
            place // PAGE,
            ref.size,
            ref.stored_at,
            ref.group,
            ref.trailing,
            ref.depth,
            0,
            ref.shard,
            len(ref.hash),
            len(ref.parent),
        )
        for ref, place in zip(refs, places, strict=True)
    )


def encode_run_header(segment: SegmentId, layout: bytes, entries: bytes, offset: int, total: int, serial: int) -> bytes:
    """The head of a run of one layout that begins at `offset` of its unit and takes `total` bytes."""
    pages = len(entries) // ENTRY_BYTES
    header_bytes = run_header_bytes(pages)
    head = _RUN.pack(
        RUN_MAGIC,
        MEDIA_FORMAT,
        ALGORITHM_XXH3,
        segment.sequence,
        segment.nonce,
        pages,
        header_bytes,
        total,
        offset,
        serial,
        layout,
    )
    check = _CHECK.pack(header_checksum(head + entries))
    return ((head + check).ljust(_RUN_ENTRIES_AT, b"\0") + entries).ljust(header_bytes, b"\0")


def peek_run_header(data: bytes | memoryview, segment: SegmentId, offset: int, limit: int) -> int:
    """Bytes of the run header of this segment that begins in `data`, by its unchecked words; 0: none does."""
    magic, format_, algorithm, sequence, nonce, pages, header_bytes, total, at, _, _ = _RUN.unpack_from(data)
    plausible = (
        (magic, format_, algorithm) == (RUN_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3)
        and (sequence, nonce, at) == (segment.sequence, segment.nonce, offset)
        and 0 < pages <= MAX_RUN_PAGES
        and header_bytes == run_header_bytes(pages)
        and header_bytes < total <= limit - offset
    )
    return header_bytes if plausible else 0


def decode_run_header(data: bytes | memoryview, offset: int) -> Run | None:
    """The run whose whole header is `data` (see `peek_run_header`); None: it is damaged, or names other places."""
    _, _, _, _, _, pages, header_bytes, total, _, _, layout = _RUN.unpack_from(data)
    body = bytes(data[_RUN_ENTRIES_AT : _RUN_ENTRIES_AT + pages * ENTRY_BYTES])
    (check,) = _CHECK.unpack_from(data, _RUN.size)
    if check != header_checksum(bytes(data[: _RUN.size]) + body):
        return None
    entries = np.frombuffer(body, ENTRY_TYPE)
    return Run(offset, total, header_bytes, layout, entries) if lie_within(entries, offset, offset + total) else None


def candidate_runs(unit: memoryview, segment: SegmentId) -> list[int]:
    """Offsets of a whole unit at which a run header of this segment may stand, rising."""
    words = np.frombuffer(unit, "<u8").reshape(-1, PAGE // 8)
    wanted = np.frombuffer(RUN_MAGIC + struct.pack("<Q", segment.sequence) + segment.nonce, "<u8")
    hits = (words[:, 0] == wanted[0]) & (words[:, 2] == wanted[1]) & (words[:, 3] == wanted[2])
    return [int(page) * PAGE for page in np.flatnonzero(hits)]


def lie_within(entries: Entries, start: int, stop: int) -> bool:
    """Whether these can be pages of that part of a unit. A checksum that matches does not say who wrote it."""
    first = entries["offset"].astype(np.int64) * PAGE
    last = first + entries["size"]
    hash_ok = (entries["hash_bytes"] >= 16) & (entries["hash_bytes"] <= 64) & (entries["parent_bytes"] <= 64)
    return bool(np.all((entries["size"] > 0) & (first >= start) & (last <= stop) & hash_ok))


def encode_summary(
    segment: SegmentId, runs: Sequence[tuple[bytes, bytes]], unit_bytes: int, reserve: int = 0
) -> tuple[int, bytes]:
    """Offset in the unit and bytes of the summary of runs (layout, entries), trailer included.

    Raises ValueError where it would begin before `reserve`.
    """
    numbers: dict[bytes, int] = {}
    parts = []
    for layout, entries in runs:
        part = np.frombuffer(entries, ENTRY_TYPE).copy()
        part["layout"] = numbers.setdefault(layout, len(numbers))
        parts.append(part.tobytes())
    body = b"".join(numbers) + b"".join(parts)
    size = round_up(len(body), PAGE) + TRAILER_BYTES
    offset = unit_bytes - size
    if offset < max(reserve, HEADER_BYTES):
        raise ValueError(f"a summary of {size} bytes does not fit behind {reserve} of {unit_bytes}")
    trailer = _TRAILER.pack(
        TRAILER_MAGIC,
        MEDIA_FORMAT,
        ALGORITHM_XXH3,
        segment.sequence,
        segment.nonce,
        sum(map(len, parts)) // ENTRY_BYTES,
        len(numbers),
        offset,
        len(body),
        xxhash.xxh3_128_digest(body),
    )
    return offset, body.ljust(size - TRAILER_BYTES, b"\0") + _with_check(trailer)


def decode_trailer(data: bytes | memoryview, segment: SegmentId, unit_bytes: int) -> SummaryPlace | None:
    """Where the summary lies that a unit's last page names; None: the segment is not sealed."""
    magic, format_, algorithm, sequence, nonce, pages, layouts, offset, body, checksum = _TRAILER.unpack_from(data)
    if (magic, format_, algorithm) != (TRAILER_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3) or not _is_checked(data):
        return None
    if (sequence, nonce) != (segment.sequence, segment.nonce):
        return None
    if body != pages * ENTRY_BYTES + layouts * LAYOUT_BYTES or offset + round_up(body, PAGE) != unit_bytes - PAGE:
        return None
    return SummaryPlace(offset, body, layouts, checksum)


def decode_summary(data: bytes | memoryview, place: SummaryPlace) -> tuple[bytes, bytes] | None:
    """Layouts and entries, packed, of a summary's bytes; None: it is damaged, or names what cannot be."""
    body = bytes(data[: place.body_bytes])
    if xxhash.xxh3_128_digest(body) != place.checksum:
        return None
    split = place.layouts * LAYOUT_BYTES
    entries = np.frombuffer(body, ENTRY_TYPE, offset=split)
    if not lie_within(entries, HEADER_BYTES, place.offset) or bool(np.any(entries["layout"] >= place.layouts)):
        return None
    return body[:split], body[split:]


def _with_check(head: bytes) -> bytes:
    padded = head.ljust(_CHECK_AT, b"\0")
    return padded + _CHECK.pack(header_checksum(padded))


def _is_checked(data: bytes | memoryview) -> bool:
    return bool(_CHECK.unpack_from(data, _CHECK_AT)[0] == header_checksum(bytes(data[:_CHECK_AT])))
