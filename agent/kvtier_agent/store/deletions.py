"""What was deleted of a pool in the arena: a file beside its chunks, for movers only. The format: docs/formats.md.

A slot whose page was taken out of the index keeps its bytes and commit word until it is used again, so a
successor would adopt it. Each record names a block, or all blocks stored before a time, and until when slots begun for
them are void. While the store runs no slot is written because of a record: others fill them.
The file lives in the arena's mount, is written through a mapping (hugetlbfs takes no writes), and ends at the first
record that is not intact.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .arena_format import SlotFields, round_up
from .checksums import header_checksum
from .chunkmap import NEW_SUFFIX
from .hugepages import file_alignment

FILE_NAME: Final = "deleted"
_RECORD: Final = struct.Struct("<32s64sQB7xQ")
_CHECK: Final = struct.Struct("<Q")
RECORD_BYTES: Final = _RECORD.size + _CHECK.size
_GROW_BYTES: Final = 64 << 10


class Expired(NamedTuple):
    """A slot whose block was stored before `before`, and that was begun at `cutoff` or before, is void."""

    before: int
    """Unix seconds."""
    cutoff: int
    """CLOCK_MONOTONIC, nanoseconds."""

    def voids(self, fields: SlotFields) -> bool:
        """Whether it makes the slot void."""
        return fields.stored_at < self.before and fields.begun <= self.cutoff


class Deleted(NamedTuple):
    """What the records say."""

    blocks: dict[tuple[bytes, bytes], int]
    """By layout and hash: slots begun at this time or before are void."""
    expired: list[Expired]
    """Without those that a later one covers."""

    def voids_block(self, fields: SlotFields) -> bool:
        """Whether the slot was begun before its block was deleted."""
        return fields.begun <= self.blocks.get((fields.layout, fields.hash), -1)


def encode_record(layout: bytes, hash_: bytes, cutoff: int) -> bytes:
    """A block's record, 128 bytes."""
    return _with_check(_RECORD.pack(layout, hash_, cutoff, len(hash_), 0))


def encode_expired(expired: Expired) -> bytes:
    """The record of an age: it names no block."""
    return _with_check(_RECORD.pack(b"", b"", expired.cutoff, 0, expired.before))


def decode_records(data: bytes) -> tuple[Deleted, int]:
    """What the records say, and where they end."""
    found = Deleted({}, [])
    at = 0
    while at + RECORD_BYTES <= len(data):
        body = data[at : at + _RECORD.size]
        if data[at : at + RECORD_BYTES] != _with_check(body):
            break
        layout, hash_, cutoff, hash_bytes, before = _RECORD.unpack(body)
        if hash_bytes:
            key = layout, hash_[:hash_bytes]
            found.blocks[key] = max(cutoff, found.blocks.get(key, 0))
        else:
            found.expired[:] = [it for it in found.expired if it.before > before or it.cutoff > cutoff]
            found.expired.append(Expired(before, cutoff))
        at += RECORD_BYTES
    return found, at


def is_void(deleted: Deleted, fields: SlotFields) -> bool:
    """Whether the slot was begun before its block was deleted, or had expired."""
    return deleted.voids_block(fields) or any(it.voids(fields) for it in deleted.expired)


def read(folder: Path) -> Deleted:
    """What was deleted of the pool whose chunks lie in `folder`. Raises OSError."""
    return _read(folder)[0]


def append(folder: Path, at: int | None, layout: bytes, hashes: Sequence[bytes], cutoff: int) -> int:
    """Note behind the first `at` bytes (None: behind all) that these blocks are deleted; where the records end now.

    On return a killed store's successor knows. Raises OSError.
    """
    return _append(folder, at, b"".join(encode_record(layout, hash_, cutoff) for hash_ in hashes))


def append_expired(folder: Path, at: int | None, before: int, cutoff: int) -> int:
    """As `append`, that what was stored before this time is gone."""
    return _append(folder, at, encode_expired(Expired(before, cutoff)))


def compact(folder: Path, committed: Iterable[SlotFields], filling_since: int) -> int:
    """Keep the records that make one of the `committed` slots void, or may one that is being filled; where they end.

    `filling_since`: no slot that is being filled was begun before. A killed store's successor finds either what was
    there or what is kept. Raises OSError.
    """
    deleted = read(folder)
    blocks = {key for key, cutoff in deleted.blocks.items() if cutoff >= filling_since}
    expired = {it for it in deleted.expired if it.cutoff >= filling_since}
    for fields in committed:
        if deleted.voids_block(fields):
            blocks.add((fields.layout, fields.hash))
        expired.update(it for it in deleted.expired if it.voids(fields))
    records = [encode_record(*key, deleted.blocks[key]) for key in blocks] + [encode_expired(it) for it in expired]
    fresh = folder / (FILE_NAME + NEW_SUFFIX)
    fresh.unlink(missing_ok=True)  # of a mover that died
    try:
        end = _write(fresh, 0, b"".join(records))
    except OSError:
        fresh.unlink()
        raise
    fresh.rename(folder / FILE_NAME)
    return end


def reset(folder: Path) -> None:
    """Forget all: no slot of the pool is void any more. Raises OSError."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def _with_check(body: bytes) -> bytes:
    return body + _CHECK.pack(header_checksum(body))


def _read(folder: Path) -> tuple[Deleted, int]:
    try:
        with (folder / FILE_NAME).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
                    return decode_records(memory[:])
    except FileNotFoundError:
        pass
    return Deleted({}, []), 0


def _append(folder: Path, at: int | None, records: bytes) -> int:
    folder.mkdir(exist_ok=True)
    return _write(folder / FILE_NAME, _read(folder)[1] if at is None else at, records)


def _write(path: Path, at: int, records: bytes) -> int:
    """Make the file large enough, and write `records` there; where they end."""
    end = at + len(records)
    with path.open("ab+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if end >= size:
            size = round_up(end + _GROW_BYTES, file_alignment(path.parent))
            os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), size) as memory:
            memory[at:end] = records
    return end
