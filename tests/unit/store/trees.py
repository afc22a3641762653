"""Books of both tiers without files, for tests of what only keeps and decides."""

from __future__ import annotations

import itertools
from pathlib import Path

from kvtier_agent.store.arena import Arena, Chunk, Slot
from kvtier_agent.store.arena_format import PAGE, Geometry
from kvtier_agent.store.index import Index, Page, PageKey
from kvtier_agent.store.nvme import Device, Location, Nvme, Segment, SegmentState

LAYOUT = b"L" * 32
KEY = PageKey(0)
OTHER_KEY = PageKey(1)
POOL = "pool-1"


class Books:
    """An arena, an NVMe tier, and pools' indexes over them."""

    def __init__(self) -> None:
        self.ticks = itertools.count(1)
        self.arena = Arena(1)
        self.device = Device("d0", Path("/nowhere"))
        self.nvme = Nvme(1 << 40, [self.device])
        self.index = self.new_index()

    def new_index(self) -> Index:
        return Index(self.arena.release, self.ticks)

    def chunk(self, slots: int, slot_bytes: int = PAGE, pool: str = POOL) -> Chunk:
        """A new chunk whose slots are free."""
        chunk = self.arena.reserve(pool, Geometry(slot_bytes, slots, 2 * PAGE, 2 * PAGE + slots * slot_bytes))
        self.arena.add(chunk)
        return chunk

    def segment(self, file_bytes: int = 1 << 20, pool: str = POOL) -> Segment:
        """A new sealed segment."""
        segment = self.nvme.reserve(self.device, pool, file_bytes)
        segment.state = SegmentState.SEALED
        return segment

    def slot(self, slot_bytes: int = PAGE, pool: str = POOL) -> Slot:
        slot = self.arena.take(pool, slot_bytes)
        assert slot is not None
        return slot

    def store(
        self,
        names: str,
        *,
        parent: bytes | None = None,
        key: PageKey = KEY,
        dram: bool = True,
        segment: Segment | None = None,
    ) -> list[Page]:
        """Add a chain of blocks named by one letter each."""
        pages = []
        for name in names:
            page = self.index.add(LAYOUT, hash_of(name), parent, key, PAGE)
            if dram:
                self.index.set_slot(page, self.slot())
            if segment is not None:
                self.index.set_nvme(page, Location(segment, PAGE, b"c" * 16))
            parent = hash_of(name)
            pages.append(page)
        return pages

    def found(self, names: str, keys: tuple[PageKey, ...] = (KEY,)) -> str:
        """The leading blocks that are whole, by name."""
        nodes = self.index.find(LAYOUT, [hash_of(name) for name in names], keys)
        return "".join(node.hash[:1].decode() for node in nodes)


def hash_of(name: str) -> bytes:
    return name.encode().ljust(32, b"_")
