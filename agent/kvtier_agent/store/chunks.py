"""The books of chunk files: whose they are, how they are cut, and what they take. What lies in them the indexes know.

Pure accounting, for the index process; the memory itself is touched by movers only (`chunkmap`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from .arena_format import Geometry


class Chunk(NamedTuple):
    """One chunk file."""

    id: int
    pool_uid: str
    cut: Geometry


class Chunks:
    """All chunk files of one arena."""

    def __init__(self, next_id: int) -> None:
        """`next_id`: above every number that was ever used in this arena."""
        self.files: dict[int, Chunk] = {}
        """Those that can be named to clients."""
        self.retired: set[int] = set()
        """Those that take no new page, are given back as soon as they are idle, and are not gone yet."""
        self.closed: dict[int, Chunk] = {}
        """Those that are being dropped, or could not be yet."""
        self._pool_bytes: defaultdict[str, int] = defaultdict(int)
        self.total_bytes = 0
        """Of all files, those being made or dropped included."""
        self._next_id = next_id

    def pool_bytes(self, pool_uid: str) -> int:
        """Of the pool's files, those being made or dropped included."""
        return self._pool_bytes[pool_uid]

    def of_pool(self, pool_uid: str) -> Iterator[Chunk]:
        """The pool's files."""
        return (chunk for chunk in self.files.values() if chunk.pool_uid == pool_uid)

    def reserve(self, pool_uid: str, cut: Geometry) -> Chunk:
        """Count a file that is about to be made; `add` or `discard` follows."""
        chunk = Chunk(self._next_id, pool_uid, cut)
        self._next_id += 1
        self._count(chunk, cut.file_bytes)
        return chunk

    def add(self, chunk: Chunk) -> None:
        """A file that is counted may be used."""
        self.files[chunk.id] = chunk

    def found(self, pool_uid: str, chunk_id: int, file_bytes: int) -> Chunk:
        """Count a file that was there before this store; `add`, with its cut, or `discard` follows."""
        chunk = Chunk(chunk_id, pool_uid, Geometry(0, 0, 0, file_bytes))
        self._count(chunk, file_bytes)
        return chunk

    def close(self, chunk: Chunk) -> None:
        """The file is about to go; its bytes count until `discard`."""
        self.files.pop(chunk.id, None)
        self.closed[chunk.id] = chunk

    def discard(self, chunk: Chunk) -> None:
        """The file is gone, or was never made."""
        self.closed.pop(chunk.id, None)
        self.retired.discard(chunk.id)
        self._count(chunk, -chunk.cut.file_bytes)

    def _count(self, chunk: Chunk, file_bytes: int) -> None:
        self._pool_bytes[chunk.pool_uid] += file_bytes
        self.total_bytes += file_bytes
