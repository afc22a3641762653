"""The arena's books: which chunks there are, which slots are free, what lies in the others.

Pure accounting, for the index process; the memory itself is touched by movers only (`chunkmap`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .arena_format import Geometry

if TYPE_CHECKING:
    from .index import Page


class Chunk:
    """One chunk file. Every slot is free, or has a page, or is being filled."""

    __slots__ = ("cut", "free", "generations", "id", "last_use", "pages", "pool_uid", "retired")

    def __init__(self, chunk_id: int, pool_uid: str, cut: Geometry, generations: Iterable[int] = ()) -> None:
        self.id, self.pool_uid, self.cut = chunk_id, pool_uid, cut
        self.generations = array("Q", generations or bytes(8 * cut.slots))
        self.free = dict.fromkeys(range(cut.slots - 1, -1, -1))
        self.pages: dict[int, Page] = {}
        self.last_use = 0
        self.retired = False
        """Takes no new page, and is given back as soon as it is idle."""

    def is_idle(self) -> bool:
        """Whether no slot is held, being filled or being written out, so that the chunk can be given back."""
        filling = self.cut.slots - len(self.free) - len(self.pages)
        return filling == 0 and not any(page.pins for page in self.pages.values())


class Slot(NamedTuple):
    """A place for one page."""

    chunk: Chunk
    number: int

    @property
    def generation(self) -> int:
        """What the slot's header shows, or will once the mover that fills it begins."""
        return self.chunk.generations[self.number]


class Arena:
    """All chunks of all pools."""

    def __init__(self, next_chunk_id: int) -> None:
        """`next_chunk_id` is above every id that any store gave a chunk here."""
        self.chunks: dict[int, Chunk] = {}
        self._roomy: defaultdict[tuple[str, int], dict[int, Chunk]] = defaultdict(dict)
        self._pool_bytes: defaultdict[str, int] = defaultdict(int)
        self.total_bytes = 0
        """Of all chunk files, those being made or dropped included."""
        self._pool_slots: defaultdict[str, int] = defaultdict(int)
        self.total_slots = 0
        """That are not free."""
        self._next_chunk_id = next_chunk_id

    def pool_bytes(self, pool_uid: str) -> int:
        """Of the pool's chunk files, those being made or dropped included."""
        return self._pool_bytes[pool_uid]

    def pool_slots(self, pool_uid: str) -> int:
        """Of the pool's slots, those that are not free."""
        return self._pool_slots[pool_uid]

    def pool_chunks(self, pool_uid: str) -> Iterator[Chunk]:
        """The pool's chunks."""
        return (chunk for chunk in self.chunks.values() if chunk.pool_uid == pool_uid)

    def retire(self, pool_uid: str) -> None:
        """Put nothing more into the chunks that the pool has now."""
        for chunk in self.pool_chunks(pool_uid):
            chunk.retired = True
            self._roomy[pool_uid, chunk.cut.slot_bytes].pop(chunk.id, None)

    def reserve(self, pool_uid: str, cut: Geometry) -> Chunk:
        """Count a chunk that is about to be made; `add` or `discard` follows."""
        chunk = Chunk(self._next_chunk_id, pool_uid, cut)
        self._next_chunk_id += 1
        self._count(chunk, cut.file_bytes)
        return chunk

    def add(self, chunk: Chunk) -> None:
        """Hand out slots of a reserved chunk."""
        self.chunks[chunk.id] = chunk
        if chunk.free:
            self._roomy[chunk.pool_uid, chunk.cut.slot_bytes][chunk.id] = chunk

    def adopt(self, chunk: Chunk) -> None:
        """Count and add a chunk that was there before this store."""
        self._count(chunk, chunk.cut.file_bytes)
        self.add(chunk)

    def close(self, chunk: Chunk) -> None:
        """Hand out no more slots of an idle, empty chunk; its bytes count until `discard`."""
        del self.chunks[chunk.id]
        self._roomy[chunk.pool_uid, chunk.cut.slot_bytes].pop(chunk.id, None)

    def discard(self, chunk: Chunk) -> None:
        """The chunk's file is gone, or was never made."""
        self._count(chunk, -chunk.cut.file_bytes)

    def take(self, pool_uid: str, slot_bytes: int) -> Slot | None:
        """A free slot of this class, its generation moved on; None: there is none."""
        roomy = self._roomy[pool_uid, slot_bytes]
        for chunk in roomy.values():
            number, _ = chunk.free.popitem()
            if not chunk.free:
                del roomy[chunk.id]
            chunk.generations[number] += 1
            self._count_slots(chunk, 1)
            return Slot(chunk, number)
        return None

    def has_free(self, pool_uid: str, slot_bytes: int) -> bool:
        """Whether `take` would return a slot."""
        return bool(self._roomy.get((pool_uid, slot_bytes)))

    def claim(self, slot: Slot) -> None:
        """Take this very slot off the free ones, its generation left: it was adopted."""
        del slot.chunk.free[slot.number]
        self._count_slots(slot.chunk, 1)
        if not slot.chunk.free:
            self._roomy[slot.chunk.pool_uid, slot.chunk.cut.slot_bytes].pop(slot.chunk.id, None)

    def release(self, slot: Slot) -> None:
        """The slot may be taken again. Its bytes stay as they are until then."""
        slot.chunk.pages.pop(slot.number, None)
        slot.chunk.free[slot.number] = None
        self._count_slots(slot.chunk, -1)
        if slot.chunk.id in self.chunks and not slot.chunk.retired:
            self._roomy[slot.chunk.pool_uid, slot.chunk.cut.slot_bytes][slot.chunk.id] = slot.chunk

    def _count_slots(self, chunk: Chunk, slots: int) -> None:
        self._pool_slots[chunk.pool_uid] += slots
        self.total_slots += slots

    def _count(self, chunk: Chunk, file_bytes: int) -> None:
        self._pool_bytes[chunk.pool_uid] += file_bytes
        self.total_bytes += file_bytes
