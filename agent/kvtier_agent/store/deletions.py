"""What was deleted of a pool in the arena: a file beside its chunks, for movers only. The format: docs/formats.md.

A slot whose page was taken out of the index keeps its bytes and commit word until it is used again, so a
successor would adopt it. Each record names a block and the time until which slots begun for it are void.
The file lives in the arena's mount, is written through a mapping (hugetlbfs takes no writes), and ends at the first
record that is not intact.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .arena_format import SlotFields, round_up
from .checksums import header_checksum
from .hugepages import file_alignment

FILE_NAME: Final = "deleted"
_RECORD: Final = struct.Struct("<32s64sQB15x")
_CHECK: Final = struct.Struct("<Q")
RECORD_BYTES: Final = _RECORD.size + _CHECK.size
_GROW_BYTES: Final = 64 << 10

Deleted = dict[tuple[bytes, bytes], int]
"""By layout and hash: slots begun at this time or before are void."""


def encode_record(layout: bytes, hash_: bytes, cutoff: int) -> bytes:
    """One record, 128 bytes."""
    body = _RECORD.pack(layout, hash_, cutoff, len(hash_))
    return body + _CHECK.pack(header_checksum(body))


def decode_records(data: bytes) -> tuple[Deleted, int]:
    """What the records say, and where they end."""
    found: Deleted = {}
    at = 0
    while at + RECORD_BYTES <= len(data):
        body = data[at : at + _RECORD.size]
        if data[at + _RECORD.size : at + RECORD_BYTES] != _CHECK.pack(header_checksum(body)):
            break
        layout, hash_, cutoff, hash_bytes = _RECORD.unpack(body)
        found[layout, hash_[:hash_bytes]] = cutoff
        at += RECORD_BYTES
    return found, at


def is_void(deleted: Deleted, fields: SlotFields) -> bool:
    """Whether the slot was begun before its block was deleted."""
    return fields.begun <= deleted.get((fields.layout, fields.hash), -1)


def read(folder: Path) -> Deleted:
    """What was deleted of the pool whose chunks lie in `folder`. Raises OSError."""
    try:
        with (folder / FILE_NAME).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return {}
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
                return decode_records(memory[:])[0]
    except FileNotFoundError:
        return {}


def append(folder: Path, at: int, layout: bytes, hashes: Sequence[bytes], cutoff: int) -> int:
    """Note behind the first `at` bytes that these blocks are deleted; returns where the records end now.

    On return a killed store's successor knows. Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    records = b"".join(encode_record(layout, hash_, cutoff) for hash_ in hashes)
    end = at + len(records)
    with (folder / FILE_NAME).open("ab+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if end > size:
            size = round_up(end + _GROW_BYTES, file_alignment(folder))
            os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), size) as memory:
            memory[at:end] = records
    return end


def reset(folder: Path) -> None:
    """Forget all: no slot of the pool is void any more. Raises OSError."""
    (folder / FILE_NAME).unlink(missing_ok=True)
