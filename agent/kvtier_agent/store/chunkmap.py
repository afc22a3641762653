"""Chunk files as movers see them: mapped for writing, with ordered stores into slot headers.

A slot is reused in this order: new generation, commit word 0, payload, fields, commit word. Generation
and commit word are aligned 8-byte stores, which x86-64 makes visible in program order, also to other
processes and also when the writer is killed between two of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from .arena_format import (
    CHUNK_HEADER_BYTES,
    PAGE,
    SLOT_FIELDS_AT,
    SLOT_HEADER_BYTES,
    Geometry,
    SlotFields,
    chunk_name,
    commit_word,
    decode_chunk_header,
    decode_slot,
    encode_chunk_header,
    encode_slot_fields,
    round_up,
)
from .checksums import page_checksum
from .jobs import PageRef

if sys.byteorder != "little":
    raise ImportError("the arena format needs a little-endian processor")

NEW_SUFFIX: Final = ".new"
"""Of a chunk file that is being made."""
GONE_SUFFIX: Final = ".gone"
"""Of a chunk file that is being freed."""
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_FENCE: Final = threading.Lock()
"""Taking a lock is a locked instruction, and so a full memory fence."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class ChunkMap:
    """One chunk, mapped read-write. For one thread."""

    def __init__(self, path: Path, chunk_id: int, pool_uid: str) -> None:
        """Raises FormatRefused, OSError."""
        with path.open("rb+", buffering=0) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), file_bytes)
        self.pool_uid = pool_uid
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self.cut = decode_chunk_header(
            str(path), bytes(self._bytes[:CHUNK_HEADER_BYTES]), chunk_id, pool_uid, file_bytes
        )

    def begin(self, slot: int, generation: int) -> None:
        """Take the slot from whoever still reads it. Before the first byte of a new payload."""
        word = self.cut.header_offset(slot) // 8
        self._words[word + 1] = generation
        self._words[word] = 0
        with _FENCE:  # a large copy may use non-temporal stores, which would pass the two above
            pass

    def payload(self, slot: int, size: int) -> memoryview:
        """The slot's first `size` bytes, writable."""
        start = self.cut.payload_offset(slot)
        return self._bytes[start : start + size]

    def commit(self, layout: bytes, page: PageRef, checksum: bytes) -> None:
        """Make the slot whole. After the last byte of its payload."""
        fields = encode_slot_fields(
            SlotFields(
                page.size,
                time.time_ns() // 1_000_000,
                checksum,
                layout,
                page.hash,
                page.parent,
                page.group,
                page.shard,
            )
        )
        start = self.cut.header_offset(page.slot)
        self._bytes[start + SLOT_FIELDS_AT : start + SLOT_HEADER_BYTES] = fields
        self._words[start // 8] = commit_word(page.generation, fields)

    def is_intact(self, layout: bytes, page: PageRef) -> bool:
        """Whether the slot is committed with this page and its payload still matches its checksum."""
        generation, fields = self.scan(page.slot)
        if fields is None or generation != page.generation:
            return False
        if (fields.layout, fields.hash, fields.size) != (layout, page.hash, page.size):
            return False
        return fields.checksum == self.checksum(layout, page, page.generation)

    def checksum(self, layout: bytes, page: PageRef, generation: int) -> bytes:
        """Of the payload as it stands in the slot, under `generation`."""
        payload = self.payload(page.slot, page.size)
        return page_checksum(self.pool_uid, layout, page.hash, page.group, page.shard, generation, payload)

    def clear_padding(self, page: PageRef) -> None:
        """Zero what follows the payload up to the next 4,096, which goes to the medium with it."""
        padded = round_up(page.size, PAGE)
        self.payload(page.slot, padded)[page.size :] = bytes(padded - page.size)

    def scan(self, slot: int) -> tuple[int, SlotFields | None]:
        """The slot's generation, and its fields if it is committed."""
        start = self.cut.header_offset(slot)
        return decode_slot(bytes(self._bytes[start : start + SLOT_HEADER_BYTES]), self.cut.slot_bytes)

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._bytes.release()
        self._map.close()


class ChunkMaps:
    """The chunks of one arena that this mover has mapped so far."""

    def __init__(self, arena: Path) -> None:
        self._arena = arena
        self._maps: dict[int, ChunkMap] = {}

    def get(self, pool_uid: str, chunk_id: int) -> ChunkMap:
        """Raises FormatRefused, OSError."""
        found = self._maps.get(chunk_id)
        if found is None:
            found = self._maps[chunk_id] = ChunkMap(self.path(pool_uid, chunk_id), chunk_id, pool_uid)
        return found

    def path(self, pool_uid: str, chunk_id: int) -> Path:
        """Of the chunk's file."""
        return self._arena / pool_uid / chunk_name(chunk_id)

    def create(self, pool_uid: str, chunk_id: int, cut: Geometry) -> None:
        """Make the file under its final name once all its memory is there, so that no store touches memory it lacks.

        Raises OSError (ENOSPC when the mount is full).
        """
        path = self.path(pool_uid, chunk_id)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(NEW_SUFFIX)
        with fresh.open("xb+", buffering=0) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, cut.file_bytes)
                with mmap.mmap(file.fileno(), cut.file_bytes) as memory:
                    memory[:CHUNK_HEADER_BYTES] = encode_chunk_header(chunk_id, pool_uid, cut)
            except OSError:
                fresh.unlink()
                raise
        fresh.rename(path)

    def drop(self, pool_uid: str, chunk_id: int) -> None:
        """Give the chunk's memory back although clients map it, then its name. May be repeated. Raises OSError.

        Its name says so first, so that no successor adopts what is half gone.
        """
        self.forget(chunk_id)
        path = self.path(pool_uid, chunk_id)
        gone = path.with_suffix(GONE_SUFFIX)
        for name in (gone, path.with_suffix(NEW_SUFFIX), path):
            if name.exists():
                free_chunk_file(name.rename(gone))

    def forget(self, chunk_id: int) -> None:
        """Unmap the chunk if it is mapped."""
        gone = self._maps.pop(chunk_id, None)
        if gone is not None:
            gone.close()


def free_chunk_file(path: Path) -> None:
    """Free the file's memory, then its name. Raises OSError.

    A hole reads as zeros to those who map it: every slot shows generation 0, which was never handed out.
    """
    with path.open("rb+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size:  # a store killed while it reserved the memory leaves an empty file
            _punch_hole(file.fileno(), size)
    path.unlink()


def _punch_hole(fd: int, size: int) -> None:
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(size)):
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
