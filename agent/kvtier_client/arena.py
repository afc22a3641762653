"""The arena as a client sees it: chunk files, mapped read-only and read in place."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import threading
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

from .failures import LOCAL, PROTOCOL, Failure
from .protocol.messages import PagePlace

GENERATION_BYTES: Final = 8


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_readonly(descriptor: int, size: int) -> memoryview:
    """`size` bytes of a file, shared and read-only; unmapped when nothing refers to them any more.

    `mmap.mmap` would keep a descriptor for each of an arena's thousands of chunks. Raises OSError.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False
    return memoryview(memory).cast("B").toreadonly()


class Chunk:
    """One chunk file, mapped read-only. Immutable, so any thread may read it.

    The mapping lives as long as this object or a view into it does.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes of the file behind `descriptor`, which stays the caller's.

        Raises OSError.
        """
        self.size = size
        self._bytes = map_readonly(descriptor, size)
        self._words: npt.NDArray[np.uint64] = np.frombuffer(self._bytes, dtype="<u8", count=size // GENERATION_BYTES)

    def view(self, place: PagePlace) -> memoryview:
        """The page's bytes in place, read-only. They are that page's while its generation stands."""
        return self._bytes[place.offset : place.offset + place.size]

    def stands(self, place: PagePlace) -> bool:
        """Whether the slot still holds this page.

        Right after a copy because amd64 keeps loads in order: whoever saw a byte of the slot's next
        page sees the generation that was changed before it. docs/protocol.md, "Reading in place".
        """
        return int(self._words[place.generation_offset // GENERATION_BYTES]) == place.generation

    def holds(self, place: PagePlace) -> bool:
        """Whether the place lies within this chunk, with an aligned generation."""
        generation = place.generation_offset
        return (
            place.offset >= 0
            and place.size > 0
            and place.offset + place.size <= self.size
            and generation >= 0
            and generation % GENERATION_BYTES == 0
            and generation + GENERATION_BYTES <= self.size
        )


class ChunkMappings:
    """Every mapped chunk of one client, so that its connections share the mappings. Thread-safe.

    Known by file, not by the agent's chunk id: a store that was replaced may give an id to another file,
    and the old mapping's generations would then stand for ever. A mapped file keeps its inode, so two
    files never share a number here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_file: weakref.WeakValueDictionary[tuple[int, int], Chunk] = weakref.WeakValueDictionary()

    def map(self, descriptor: int) -> Chunk:
        """The chunk behind `descriptor`, mapped if it is not yet. The descriptor stays the caller's.

        Raises Failure when it is no file, or cannot be mapped.
        """
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
                raise Failure(PROTOCOL, "the agent sent a chunk descriptor that is no file with content")
            key = (status.st_dev, status.st_ino)
            with self._lock:
                chunk = self._by_file.get(key)
                if chunk is None or chunk.size != status.st_size:
                    chunk = self._by_file[key] = Chunk(descriptor, status.st_size)
                return chunk
        except OSError as error:
            raise Failure(LOCAL, f"mapping a chunk of the arena: {error.strerror or error}") from error
