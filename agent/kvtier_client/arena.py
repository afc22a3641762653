"""The arena as a client sees it: chunk files, mapped read-only and shared by all of its connections."""

from __future__ import annotations

import logging
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from .failures import LOCAL, PROTOCOL, Failure
from .memory import address_of, map_readonly, populate_for_reading

GENERATION_BYTES: Final = 8
_STAT_BLOCK_BYTES: Final = 512

log = logging.getLogger("kvtier.client")


class Chunk:
    """One chunk file, mapped read-only. Immutable, so any thread may read it.

    The mapping lives as long as this object or a view into it does.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes of the file behind `descriptor`, which stays the caller's.

        Raises OSError.
        """
        self.size = size
        self.bytes = map_readonly(descriptor, size)
        self.address = address_of(self.bytes)
        self.words = self.bytes[: size - size % GENERATION_BYTES].cast("Q")
        """For generations: an element is read in one load, in the byte order of amd64."""


class ChunkMappings:
    """Every mapped chunk of one client. Thread-safe.

    Known by file, not by the agent's chunk id: a store that was replaced may give an id to another file,
    and the old mapping's generations would then stand for ever. A mapped file keeps its inode, so two
    files never share a number here.
    """

    def __init__(self, on_new: Callable[[], None] = lambda: None) -> None:
        """`on_new` is called when `populate` has something to do; it must not block."""
        self._on_new = on_new
        self._lock = threading.Lock()
        self._by_file: weakref.WeakValueDictionary[tuple[int, int], Chunk] = weakref.WeakValueDictionary()
        self._unpopulated: deque[weakref.ref[Chunk]] = deque()

    def map(self, descriptor: int) -> Chunk:
        """The chunk behind `descriptor`, mapped if it is not yet. The descriptor stays the caller's.

        Raises Failure when it is no file, or cannot be mapped.
        """
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size < GENERATION_BYTES:
                raise Failure(PROTOCOL, "the agent sent a chunk descriptor that is no file with content")
            key = (status.st_dev, status.st_ino)
            with self._lock:
                chunk = self._by_file.get(key)
                if chunk is not None and chunk.size == status.st_size:
                    return chunk
                chunk = self._by_file[key] = Chunk(descriptor, status.st_size)
        except OSError as error:
            raise Failure(LOCAL, f"mapping a chunk of the arena: {error.strerror or error}") from error
        # Reading a hole of a tmpfs file takes memory, and charges this process for what is the agent's.
        if status.st_blocks * _STAT_BLOCK_BYTES >= status.st_size:
            self._unpopulated.append(weakref.ref(chunk))
            self._on_new()
        return chunk

    def populate(self) -> None:
        """Fill the page tables of chunks mapped since, so that a get does not fault. Takes milliseconds a chunk."""
        while True:
            try:
                chunk = self._unpopulated.popleft()()
            except IndexError:
                return
            if chunk is not None:
                populate_for_reading(chunk.bytes)
