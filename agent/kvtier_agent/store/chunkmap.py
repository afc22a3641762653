"""Chunk files as movers see them: mapped for writing, with ordered stores into slot headers.

A slot is reused in this order: new generation, commit word 0, payload, fields, commit word. Generation
and commit word are aligned 8-byte stores, which x86-64 makes visible in program order, also to other
processes and also when the writer is killed between two of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Final

from .arena_format import (
    CHUNK_HEADER_BYTES,
    LAST_USE_AT,
    PAGE,
    SLOT_FIELDS_END,
    SLOT_HEADER_BYTES,
    Geometry,
    SlotFields,
    chunk_name,
    decode_chunk_header,
    decode_slot,
    encode_chunk_header,
    pack_slot_fields,
    round_up,
)
from .checksums import header_checksum, page_checksum
from .hugepages import file_alignment
from .refs import Ref

if sys.byteorder != "little":
    raise ImportError("the arena format needs a little-endian processor")

NEW_SUFFIX: Final = ".new"
"""Of a chunk file that is being made."""
GONE_SUFFIX: Final = ".gone"
"""Of a chunk file that is being freed."""
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_MADV_POPULATE_WRITE: Final = 23
_FENCE: Final = threading.Lock()
"""Taking a lock is a locked instruction, and so a full memory fence."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class ChunkMap:
    """One chunk, mapped read-write. Distinct slots may be used by distinct threads."""

    def __init__(self, path: Path, chunk_id: int, pool_uid: str) -> None:
        """Raises FormatRefused, ChunkDamaged, OSError."""
        with path.open("rb+", buffering=0) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), file_bytes)
        self.pool_uid = pool_uid
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self.cut = decode_chunk_header(
            str(path), bytes(self._bytes[:CHUNK_HEADER_BYTES]), chunk_id, pool_uid, file_bytes
        )

    def populate(self) -> None:
        """Map all of it at once: cheaper than a fault for each page when it is first written."""
        with contextlib.suppress(OSError):  # Linux before 5.14
            self._map.madvise(_MADV_POPULATE_WRITE)

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

    def commit(self, ref: Ref, begun: int, digest: bytes = b"") -> None:
        """Make the slot whole. After the last byte of its payload; its digest is `ref.digest` unless one is given.

        `begun`: CLOCK_MONOTONIC in nanoseconds, read in the index process when the slot was taken: a block that is
        deleted later does not come back from it.
        """
        start = self.cut.header_offset(ref.slot)
        digest = digest or ref.digest
        checksum = self._checksum(ref.layout, ref.hash, ref.group, ref.shard, ref.generation, digest)
        pack_slot_fields(self._bytes, start, ref, begun, checksum, digest)
        self._words[start // 8] = header_checksum(self._bytes[start + 8 : start + SLOT_FIELDS_END])

    def is_intact(self, ref: Ref) -> bool:
        """Whether the slot's header is committed and says what `ref` does. The payload is not looked at."""
        generation, fields, _ = self.scan(ref.slot)
        return (
            fields is not None
            and generation == ref.generation
            and (fields.layout, fields.hash, fields.size, fields.digest) == (ref.layout, ref.hash, ref.size, ref.digest)
            and self._matches(generation, fields)
        )

    def clear_padding(self, ref: Ref) -> None:
        """Zero what follows the payload up to the next 4,096, which goes to the medium with it."""
        padded = round_up(ref.size, PAGE)
        if padded != ref.size:
            self.payload(ref.slot, padded)[ref.size :] = bytes(padded - ref.size)

    def scan(self, slot: int) -> tuple[int, SlotFields | None, int]:
        """The slot's generation, its fields if it is committed, and its last use (unix seconds)."""
        start = self.cut.header_offset(slot)
        generation, fields, last_use = decode_slot(
            bytes(self._bytes[start : start + SLOT_HEADER_BYTES]), self.cut.slot_bytes
        )
        if fields is not None and not self._matches(generation, fields):
            return generation, None, 0
        return generation, fields, last_use

    def uncommit(self, slot: int) -> None:
        """The slot's page is gone: no successor adopts it. Its generation stays."""
        self._words[self.cut.header_offset(slot) // 8] = 0

    def touch(self, generation_offset: int, generation: int, now: bytes) -> None:
        """Note the last use of the page at this place, if it still is there; `now`: unix seconds in 4 bytes."""
        start = generation_offset - 8
        if self._words[start // 8 + 1] == generation:
            self._bytes[start + LAST_USE_AT : start + LAST_USE_AT + 4] = now

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # a payload is still in use: unmapped with the last of them
            self._map.close()

    def _matches(self, generation: int, fields: SlotFields) -> bool:
        return fields.checksum == self._checksum(
            fields.layout, fields.hash, fields.group, fields.shard, generation, fields.digest
        )

    def _checksum(self, layout: bytes, hash_: bytes, group: int, shard: int, generation: int, digest: bytes) -> bytes:
        return page_checksum(self.pool_uid, layout, hash_, group, shard, generation, digest)


class ChunkMaps:
    """The chunks of one arena that this mover has mapped so far. Thread-safe."""

    def __init__(self, arena: Path) -> None:
        self._arena = arena
        self._maps: dict[int, ChunkMap] = {}
        self._lock = threading.Lock()

    def get(self, pool_uid: str, chunk_id: int) -> ChunkMap:
        """Raises FormatRefused, ChunkDamaged, OSError."""
        found = self._maps.get(chunk_id)
        if found is None:
            with self._lock:
                found = self._maps.get(chunk_id)
                if found is None:
                    found = ChunkMap(self.path(pool_uid, chunk_id), chunk_id, pool_uid)
                    found.populate()
                    self._maps[chunk_id] = found
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
        with self._lock:
            gone = self._maps.pop(chunk_id, None)
        if gone is not None:
            gone.close()


def free_chunk_file(path: Path) -> None:
    """Free the file's memory, then its name. Raises OSError.

    A hole reads as zeros to those who map it: every slot shows generation 0, which was never handed out. On huge pages
    a reader of a hole would be killed where none is left: there the slots are taken from the readers, and the memory is
    free once the last of them has unmapped it.
    """
    with path.open("rb+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size and (unit := file_alignment(path.parent)) > PAGE:
            with mmap.mmap(file.fileno(), size) as memory:
                for start in range(0, size, unit):  # headers first
                    memory[start : start + unit] = bytes(unit)
        elif size:  # a store killed while it reserved the memory leaves an empty file
            _punch_hole(file.fileno(), size)
    path.unlink()


def _punch_hole(fd: int, size: int) -> None:
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(size)):
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
