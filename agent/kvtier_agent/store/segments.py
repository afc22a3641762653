"""Media format 0: segments, their runs and summaries. The format's page: docs/formats.md.

A segment is an append-only file of one pool: a header, runs, and once sealed a summary and a trailer.
Pure: bytes in, values out. I/O is in `media`, for movers only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from .arena_format import PAGE, round_up
from .checksums import ALGORITHM_XXH3, header_checksum
from .errors import FormatRefused

MEDIA_FORMAT: Final = 0
FORMAT_FILE: Final = "FORMAT"
FORMAT_TEXT: Final = f"kvtier media format {MEDIA_FORMAT}\n"
SEGMENT_HEADER_BYTES: Final = PAGE
TRAILER_BYTES: Final = PAGE
MAX_RUN_BYTES: Final = 16 << 20
MAX_RUN_PAGES: Final = 1000
"""One vectored write takes 1,024 pieces."""

_SEGMENT: Final = struct.Struct("<8sIIQQB128s")
_RUN: Final = struct.Struct("<8sIIQQIIQ")
_RUN_CHECK_AT: Final = _RUN.size
_RUN_ENTRIES_AT: Final = 64
_ENTRY: Final = struct.Struct("<32s64s64sBBHIQQ16s")
ENTRY_BYTES: Final = _ENTRY.size
_TRAILER: Final = struct.Struct("<8sIIQQQQ16s")
_CHECK: Final = struct.Struct("<Q")
_CHECK_AT: Final = PAGE - _CHECK.size
SEGMENT_MAGIC: Final = b"KVTSEGMT"
RUN_MAGIC: Final = b"KVTRUNHD"
TRAILER_MAGIC: Final = b"KVTSUMMA"
_SEGMENT_NAME: Final = re.compile(r"([0-9a-f]{16})\.seg")
_FORMAT_LINE: Final = re.compile(r"kvtier media format (\d+)\n")


class Entry(NamedTuple):
    """One page of a run, as the run's head names it."""

    layout: bytes
    hash: bytes
    parent: bytes
    """b"" where the block starts its chain."""
    group: int
    shard: int
    size: int
    offset: int
    """Of the payload in the segment, a multiple of 4,096."""
    checksum: bytes


class Run(NamedTuple):
    """A decoded run header."""

    offset: int
    run_bytes: int
    header_bytes: int
    entries: list[Entry]


def segment_name(sequence: int) -> str:
    """File name of a segment."""
    return f"{sequence:016x}.seg"


def parse_segment_name(name: str) -> int | None:
    """The sequence number that a file name stands for; None: it is no segment."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match.group(1), 16) if match else None


def check_format_text(path: str, text: str) -> None:
    """Raise FormatRefused unless the device's FORMAT file names this media format."""
    if text != FORMAT_TEXT:
        match = _FORMAT_LINE.fullmatch(text)
        found = f"media format {match.group(1)}" if match else f"{text[:40]!r}"
        raise FormatRefused(path, f"media format {MEDIA_FORMAT}", found)


def run_header_bytes(pages: int) -> int:
    """Bytes at a run's head, headers of all its pages included."""
    return round_up(_RUN_ENTRIES_AT + pages * ENTRY_BYTES, PAGE)


def run_bytes(sizes: Sequence[int]) -> int:
    """Bytes that a run of pages of these sizes takes in a segment."""
    return run_header_bytes(len(sizes)) + sum(round_up(size, PAGE) for size in sizes)


def summary_bytes(pages: int) -> int:
    """Bytes that the summary of `pages` pages takes, trailer included."""
    return round_up(pages * ENTRY_BYTES, PAGE) + TRAILER_BYTES


def encode_segment_header(pool_uid: str, sequence: int, segment_bytes: int) -> bytes:
    """The first page of a segment."""
    uid = pool_uid.encode()
    head = _SEGMENT.pack(SEGMENT_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3, sequence, segment_bytes, len(uid), uid)
    head = head.ljust(_CHECK_AT, b"\0")
    return head + _CHECK.pack(header_checksum(head))


def decode_segment_header(path: str, data: bytes, pool_uid: str, sequence: int) -> bool:
    """Whether a segment of this pool and number stands here; False: its header is torn or damaged.

    Raises FormatRefused when it is intact and of another format.
    """
    if len(data) < PAGE:
        return False
    magic, format_, algorithm, seq, _, uid_bytes, uid = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        return False
    if (format_, algorithm) != (MEDIA_FORMAT, ALGORITHM_XXH3):
        raise FormatRefused(path, f"media format {MEDIA_FORMAT}", f"format {format_}, checksum {algorithm}")
    intact = _CHECK.unpack_from(data, _CHECK_AT)[0] == header_checksum(data[:_CHECK_AT])
    return intact and (seq, uid[:uid_bytes]) == (sequence, pool_uid.encode())


def encode_run_header(sequence: int, offset: int, entries: Sequence[Entry], total_bytes: int) -> bytes:
    """The head of a run that begins at `offset` and takes `total_bytes`."""
    header_bytes = run_header_bytes(len(entries))
    head = _RUN.pack(RUN_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3, sequence, total_bytes, len(entries), header_bytes, offset)
    body = encode_entries(entries)
    check = xxhash.xxh3_64_intdigest(head + body) or 1
    return (head + _CHECK.pack(check)).ljust(_RUN_ENTRIES_AT, b"\0") + body.ljust(header_bytes - _RUN_ENTRIES_AT, b"\0")


def peek_run_header(data: bytes | memoryview, sequence: int, offset: int, limit: int) -> int:
    """Bytes of the run header that begins in `data` (one page), going by its unchecked words; 0: none does."""
    magic, format_, algorithm, seq, total, pages, header_bytes, at = _RUN.unpack_from(data)
    plausible = (
        (magic, format_, algorithm, seq, at) == (RUN_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3, sequence, offset)
        and 0 < pages <= MAX_RUN_PAGES
        and header_bytes == run_header_bytes(pages)
        and header_bytes < total <= limit - offset
    )
    return header_bytes if plausible else 0


def decode_run_header(data: bytes | memoryview, offset: int) -> Run | None:
    """The run whose whole header is `data`; None: its checksum does not match."""
    _, _, _, _, total, pages, header_bytes, _ = _RUN.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _RUN_CHECK_AT)
    body = bytes(data[_RUN_ENTRIES_AT : _RUN_ENTRIES_AT + pages * ENTRY_BYTES])
    if check != (xxhash.xxh3_64_intdigest(bytes(data[: _RUN.size]) + body) or 1):
        return None
    return Run(offset, total, header_bytes, decode_entries(body))


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Entries one behind the other, as in run headers and summaries."""
    return b"".join(
        _ENTRY.pack(
            entry.layout,
            entry.hash,
            entry.parent,
            len(entry.hash),
            len(entry.parent),
            entry.shard,
            entry.group,
            entry.size,
            entry.offset,
            entry.checksum,
        )
        for entry in entries
    )


def decode_entries(data: bytes) -> list[Entry]:
    """What encode_entries was given."""
    return [
        Entry(layout, hash_[:hash_bytes], parent[:parent_bytes], group, shard, size, offset, checksum)
        for layout, hash_, parent, hash_bytes, parent_bytes, shard, group, size, offset, checksum in _ENTRY.iter_unpack(
            data
        )
    ]


def encode_summary(sequence: int, offset: int, entries: Sequence[Entry]) -> bytes:
    """Summary and trailer of a segment that is sealed at `offset`."""
    body = encode_entries(entries)
    trailer = _TRAILER.pack(
        TRAILER_MAGIC,
        MEDIA_FORMAT,
        ALGORITHM_XXH3,
        sequence,
        len(entries),
        offset,
        len(body),
        xxhash.xxh3_128_digest(body),
    ).ljust(_CHECK_AT, b"\0")
    return body.ljust(round_up(len(body), PAGE), b"\0") + trailer + _CHECK.pack(header_checksum(trailer))


def decode_trailer(data: bytes, sequence: int, file_bytes: int) -> tuple[int, int, bytes] | None:
    """Offset, bytes and checksum of the summary that the segment's last page names; None: it is not sealed."""
    if len(data) < PAGE:
        return None
    magic, format_, algorithm, seq, pages, offset, length, checksum = _TRAILER.unpack_from(data)
    if (magic, format_, algorithm, seq) != (TRAILER_MAGIC, MEDIA_FORMAT, ALGORITHM_XXH3, sequence):
        return None
    if _CHECK.unpack_from(data, _CHECK_AT)[0] != header_checksum(data[:_CHECK_AT]):
        return None
    if length != pages * ENTRY_BYTES or offset + summary_bytes(pages) != file_bytes:
        return None
    return offset, length, checksum


def decode_summary(data: bytes, checksum: bytes) -> list[Entry] | None:
    """The entries of a summary; None: its checksum does not match."""
    return decode_entries(data) if xxhash.xxh3_128_digest(data) == checksum else None
