"""Room in dram: makes chunks, gives them back, and waits, as `policy` decides, until an index has a slot."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

from . import jobs
from .aio import let_others
from .arena_format import SLOT_HEADER_BYTES, Geometry
from .chunks import Chunk
from .core import Core, Pool
from .errors import DeviceError, JobFailed, MoverDied
from .log import log
from .movers import Priority
from .policy import (
    Await,
    ChunkView,
    GiveBack,
    Grow,
    NoRoom,
    RoomView,
    chunk_target_bytes,
    decide_exchange,
    decide_growth,
    decide_room,
    decide_surplus,
    most_slots,
)
from .ports import PoolView

_FULL_S: Final = 30.0
"""After the mount refused a chunk, take what there is for the capacity this long."""
_SHORT_S: Final = 5.0
"""A class that had no free slot is short of room for so long."""
_COMPARE_PART: Final = 4
"""Classes are compared whenever this part of a chunk was evicted."""
_DROP_ATTEMPTS: Final = 3
_CLEAR_PAGES: Final = 256
"""Evicted at a stretch: a small part of a millisecond."""
_CLEAR_ATTEMPTS: Final = 8
"""Rounds without success, since readers came back to the chunk."""


class Room:
    """Makes room. Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._growth = asyncio.Lock()
        """Held by whoever makes a chunk, or gives one back."""
        self._full_bytes, self._full_until = 0, 0.0
        self._short: dict[tuple[str, int], float] = {}
        """By pool and class, when it last had no free slot."""
        self._evicted: Counter[str] = Counter()
        """By pool, how many pages had been evicted when its classes were last compared."""

    def max_slots(self, pool: PoolView) -> int:
        """How many slots of the pool may be in use: the index has memory for so many pages."""
        config = self._core.config
        mean = int(config.mean_page)
        others = sum(it.index.slots_in_use for it in self._core.pools.values() if it.uid != pool.uid)
        quota = pool.grant.dram_quota if pool.grant else 0
        return max(0, min(most_slots(quota, mean), most_slots(int(config.arena.capacity), mean) - others))

    def free_slots(self, pool: PoolView, slot_bytes: int) -> int | None:
        """See ports.SlotRoom."""
        if decide_growth(self._view(self._core.pools[pool.uid]), slot_bytes) is None:
            return None
        return pool.index.free_slots(slot_bytes)

    async def make_room(self, pool: PoolView, slot_bytes: int, deadline: float) -> bool:
        """See ports.SlotRoom."""
        return await self.make(self._core.pools[pool.uid], slot_bytes, deadline, for_load=True) is None

    async def make(self, pool: Pool, slot_bytes: int, deadline: float, *, for_load: bool = False) -> NoRoom | None:
        """One step towards a slot of this class, none being free or evictable: ask the index again then.

        By `deadline` (the loop's time). NoRoom: there will be none.
        """
        core = self._core
        core.nvme.relieve(pool, slot_bytes)
        step = decide_room(self._view(pool, for_load=for_load), slot_bytes, list(self._chunk_views()))
        if isinstance(step, NoRoom):
            return step
        if isinstance(step, Await):
            if not await pool.progress.wait(deadline):
                return NoRoom("what is in dram was not written to nvme in time")
            return None
        resize = core.tasks.start("resize", self._resize(pool, step, core.chunks.pool_bytes(pool.uid)))
        remaining = deadline - asyncio.get_running_loop().time()
        if not (await asyncio.wait((resize,), timeout=max(0.0, remaining)))[0]:
            return NoRoom("a chunk was not made or given back in time")
        return None

    def look_ahead(self, pool: Pool, slot_bytes: int) -> None:
        """Slots of this class were handed out: make the next chunk while there still are some."""
        free = pool.index.free_slots(slot_bytes)
        if not free:
            self._short[pool.uid, slot_bytes] = asyncio.get_running_loop().time()
        if self._growth.locked():
            return
        cut = decide_growth(self._view(pool), slot_bytes)
        if cut is not None and free * 2 < cut.slots:
            self._core.tasks.start("grow", self._resize(pool, Grow(cut), self._core.chunks.pool_bytes(pool.uid)))
        elif cut is None and not free:
            self._core.nvme.relieve(pool, slot_bytes)
            since = pool.index.evicted_pages - self._evicted[pool.uid]
            target = chunk_target_bytes(pool.dram_quota, int(self._core.config.arena.capacity))
            if since * slot_bytes > target // _COMPARE_PART:
                self._evicted[pool.uid] = pool.index.evicted_pages
                self._core.tasks.start("exchange", self._exchange_now())

    async def trim(self) -> None:
        """Give back retired chunks, and what lowered quotas and capacity no longer allow, if idle.

        What could not be freed before is freed too. Raises JobFailed.
        """
        core = self._core
        async with self._growth:
            while True:
                over = {
                    pool.uid
                    for pool in core.pools.values()
                    if pool.grant is not None and core.chunks.pool_bytes(pool.uid) > pool.dram_quota
                }
                surplus = decide_surplus(
                    self._chunk_views(),
                    core.chunks.retired,
                    over,
                    over_capacity=core.chunks.total_bytes > core.config.arena.capacity,
                )
                if surplus is None or not await self._give_back(core.chunks.files[surplus.id]):
                    break
            await self._exchange()
            for chunk in list(core.chunks.closed.values()):
                await self._drop(chunk)

    async def empty(self, pool: Pool) -> None:
        """Give back those of the pool's chunks that are idle now. Raises JobFailed."""
        files = self._core.chunks.files
        for chunk in [files[it.id] for it in self._chunk_views_of(pool) if it.idle]:
            async with self._growth:  # who waits to make room goes between two
                if chunk.id in files:
                    await self._give_back(chunk)

    async def _give_back(self, chunk: Chunk) -> bool:
        """Drop an idle chunk's pages from dram and free its memory. False: readers came back. Raises JobFailed.

        The caller holds `_growth`: of two that clear one chunk, the later would find it gone.
        """
        core = self._core
        index = core.pools[chunk.pool_uid].index
        left, failed = index.clear_chunk(chunk.id, _CLEAR_PAGES), 0
        while left:
            await let_others()
            before, left = left, index.clear_chunk(chunk.id, _CLEAR_PAGES)
            failed = failed + 1 if left == before else 0
            if failed == _CLEAR_ATTEMPTS:
                if chunk.id not in core.chunks.retired:
                    index.reopen_chunk(chunk.id)
                return False
        await self._drop(chunk)
        return True

    async def free_file(self, pool_uid: str, chunk_id: int) -> None:
        """Free the file of a chunk that no index knows. Raises JobFailed."""
        core = self._core
        for attempt in range(1, _DROP_ATTEMPTS + 1):
            try:
                await core.movers.run(jobs.DropChunk(core.movers.next_id(), pool_uid, chunk_id), Priority.ROOM)
                break
            except MoverDied:
                if attempt == _DROP_ATTEMPTS:
                    raise

    async def _exchange_now(self) -> None:
        async with self._growth:
            try:
                await self._exchange()
            except JobFailed as error:
                log("arena.exchange_failed", error=error)

    async def _exchange(self) -> None:
        """Move memory of a pool that is full from classes of pages that went cold to those that are short of it."""
        core, now = self._core, asyncio.get_running_loop().time()
        self._short = {key: at for key, at in self._short.items() if now - at < _SHORT_S}
        for pool_uid in {uid for uid, _ in self._short}:
            pool = core.pools.get(pool_uid)
            classes = [slot_bytes for uid, slot_bytes in self._short if uid == pool_uid]
            if pool is None or any(decide_growth(self._view(pool), it) for it in classes):
                continue
            chunk = decide_exchange(self._chunk_views_of(pool), classes)
            if chunk is not None:
                await self._give_back(core.chunks.files[chunk.id])

    def _view(self, pool: Pool, *, for_load: bool = False) -> RoomView:
        core = self._core
        capacity = int(core.config.arena.capacity)
        if asyncio.get_running_loop().time() < self._full_until:
            capacity = min(capacity, self._full_bytes)
        return RoomView(
            pool.uid,
            core.chunks.pool_bytes(pool.uid),
            core.chunks.total_bytes,
            pool.dram_quota,
            capacity,
            core.file_alignment,
            for_load=for_load,
            crowded=pool.index.slots_in_use >= self.max_slots(pool),
            busy=pool.filling > 0 or self._growth.locked() or core.nvme.writing(pool),
        )

    def _chunk_views(self) -> Iterator[ChunkView]:
        for pool in self._core.pools.values():
            yield from self._chunk_views_of(pool)

    def _chunk_views_of(self, pool: Pool) -> Iterator[ChunkView]:
        files = self._core.chunks.files
        return (ChunkView(pool.uid, *chunk) for chunk in pool.index.chunks() if chunk[0] in files)

    async def _resize(self, pool: Pool, step: Grow | GiveBack, bytes_before: int) -> None:
        """Make or give back one chunk, unless someone has since, or the pool is not served any more."""
        core = self._core
        async with self._growth:
            if pool.grant is None or core.chunks.pool_bytes(pool.uid) != bytes_before:
                return
            try:
                if isinstance(step, Grow):
                    await self._grow(pool, step.cut)
                elif (chunk := core.chunks.files.get(step.chunk)) is not None:
                    await self._give_back(chunk)
            except DeviceError as error:
                self._full_bytes = core.chunks.total_bytes
                self._full_until = asyncio.get_running_loop().time() + _FULL_S
                log("arena.full", bytes=self._full_bytes, capacity=core.config.arena.capacity, error=error)
            except JobFailed as error:
                log("arena.resize_failed", pool=pool.uid, error=error)
        pool.progress.fire()

    async def _grow(self, pool: Pool, cut: Geometry) -> None:
        core = self._core
        chunk = core.chunks.reserve(pool.uid, cut)
        job = jobs.CreateChunk(core.movers.next_id(), pool.uid, chunk.id, *cut)
        try:
            await core.movers.run(job, Priority.ROOM)
        except JobFailed:
            await self._drop(chunk)
            raise
        core.chunks.add(chunk)
        add_to_index(pool, chunk, b"")
        core.chunk_added(pool.uid, chunk.id)
        pool.progress.fire()

    async def _drop(self, chunk: Chunk) -> None:
        """Remove the chunk's file, wherever its making or an earlier attempt left it. Raises JobFailed."""
        core = self._core
        core.chunks.close(chunk)
        await self.free_file(chunk.pool_uid, chunk.id)
        core.chunks.discard(chunk)
        core.movers.forget_chunk(chunk.pool_uid, chunk.id)
        core.nvme.forget_chunk(chunk.pool_uid, chunk.id)
        core.chunk_gone(chunk.pool_uid, chunk.id)
        core.pools[chunk.pool_uid].progress.fire()


def add_to_index(pool: Pool, chunk: Chunk, generations: bytes) -> None:
    """Let the pool's index hand out the chunk's slots. `generations`: 64 bits each; b"": all are 0."""
    cut = chunk.cut
    pool.index.add_chunk(
        chunk.id, cut.slot_bytes, cut.slots, cut.payload_at, cut.generation_offset(0), SLOT_HEADER_BYTES, generations
    )
