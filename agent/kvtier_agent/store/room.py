"""Room in DRAM: carries out what `policy` decides, until a slot is free or none can be."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from . import jobs
from .arena import Chunk, Slot
from .arena_format import Geometry
from .core import Core, Pool
from .errors import DeviceError, JobFailed, MoverDied
from .log import log
from .movers import Priority
from .policy import (
    Await,
    Evict,
    GiveBack,
    Grow,
    NoRoom,
    RoomStep,
    RoomView,
    decide_room,
    decide_surplus_chunk,
    is_arena_crowded,
)

_FULL_S: Final = 30.0
"""After the mount refused a chunk, take what there is for the capacity this long."""
_COMPARE_EVERY: Final = 64
"""Evictions between two looks for a colder chunk of another class."""
_DROP_ATTEMPTS: Final = 3


class Room:
    """Hands out slots. Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._growth = asyncio.Lock()
        self._evictions: Counter[tuple[str, int]] = Counter()
        self._full_bytes, self._full_until = 0, 0.0

    async def reserve(self, pool: Pool, slot_bytes: int, deadline: float) -> Slot | NoRoom:
        """A slot for a page of this class, by `deadline` (the loop's time).

        The caller fills it and places a page in it, or gives it back with `release`.
        """
        while True:
            slot = self.reserve_nowait(pool, slot_bytes)
            if slot is not None:
                return slot
            step = self._decide(pool, slot_bytes)
            if isinstance(step, NoRoom):
                return step
            if isinstance(step, Await):
                if not await pool.progress.wait(deadline):
                    return NoRoom("what is in dram was not written to nvme in time")
            else:
                resize = self._core.tasks.start("resize", self._resize(pool, slot_bytes))
                remaining = deadline - asyncio.get_running_loop().time()
                if not (await asyncio.wait((resize,), timeout=max(0.0, remaining)))[0]:
                    return NoRoom("a chunk was not made or given back in time")

    def reserve_nowait(self, pool: Pool, slot_bytes: int) -> Slot | None:
        """As `reserve`; None: a chunk would have to be made or given back, or something waited for."""
        slot = None if is_arena_crowded(self._view(pool)) else self._core.arena.take(pool.uid, slot_bytes)
        if slot is None and isinstance(step := self._decide(pool, slot_bytes), Evict):
            pool.index.drop_slot(step.page)
            pool.counters["pages_evicted_dram"] += 1
            self._evictions[pool.uid, slot_bytes] += 1
            slot = self._core.arena.take(pool.uid, slot_bytes)
        return slot

    def release(self, pool: Pool, slot: Slot) -> None:
        """Give back a slot that no page was placed in."""
        self._core.arena.release(slot)
        pool.progress.fire()

    async def give_back(self, chunk: Chunk) -> None:
        """Drop an idle chunk's pages from DRAM and free its memory. Raises JobFailed."""
        core = self._core
        pool = core.pools[chunk.pool_uid]
        pages = list(chunk.pages.values())
        for page in pages:
            if page.slot is not None:
                pool.index.drop_slot(page)
        pool.counters["pages_evicted_dram"] += len(pages)
        core.arena.close(chunk)
        await self._drop(chunk)
        core.movers.forget_chunk(chunk.pool_uid, chunk.id)
        pool.progress.fire()

    async def trim(self) -> None:
        """Give back retired chunks, and what lowered quotas and capacity no longer allow, if idle. Raises JobFailed."""
        core = self._core
        async with self._growth:
            while True:
                quotas = {pool.uid: pool.dram_quota for pool in core.pools.values() if pool.grant is not None}
                chunk = decide_surplus_chunk(core.arena, quotas, core.config.arena.capacity)
                if chunk is None:
                    return
                await self.give_back(chunk)

    def _decide(self, pool: Pool, slot_bytes: int) -> RoomStep:
        compare = self._evictions[pool.uid, slot_bytes] % _COMPARE_EVERY == 0
        return decide_room(self._view(pool, compare=compare), slot_bytes)

    def _view(self, pool: Pool, *, compare: bool = False) -> RoomView:
        core = self._core
        capacity = int(core.config.arena.capacity)
        if asyncio.get_running_loop().time() < self._full_until:
            capacity = min(capacity, self._full_bytes)
        return RoomView(
            core.arena,
            pool.index,
            pool.uid,
            pool.dram_quota,
            capacity,
            core.config.arena.slot_alignment,
            busy=pool.writes > 0,
            mean_page_bytes=int(core.config.mean_page),
            compare=compare,
        )

    async def _resize(self, pool: Pool, slot_bytes: int) -> None:
        """Make or give back one chunk, if that is still what has to be done."""
        async with self._growth:
            if self._core.arena.has_free(pool.uid, slot_bytes) and not is_arena_crowded(self._view(pool)):
                return
            step = self._decide(pool, slot_bytes)
            try:
                if isinstance(step, Grow):
                    await self._grow(pool, step.cut)
                elif isinstance(step, GiveBack):
                    await self.give_back(step.chunk)
            except DeviceError as error:
                self._full_bytes = self._core.arena.total_bytes
                self._full_until = asyncio.get_running_loop().time() + _FULL_S
                log("arena.full", bytes=self._full_bytes, capacity=self._core.config.arena.capacity, error=error)
            except JobFailed as error:
                log("arena.resize_failed", pool=pool.uid, error=error)

    async def _grow(self, pool: Pool, cut: Geometry) -> None:
        core = self._core
        chunk = core.arena.reserve(pool.uid, cut)
        job = jobs.CreateChunk(core.movers.next_id(), pool.uid, chunk.id, *cut)
        try:
            await core.movers.run(job, Priority.ROOM)
        except JobFailed:
            await self._drop(chunk)
            raise
        core.arena.add(chunk)

    async def _drop(self, chunk: Chunk) -> None:
        """Remove the chunk's file, wherever its making or an earlier attempt left it. Raises JobFailed."""
        core = self._core
        for attempt in range(1, _DROP_ATTEMPTS + 1):
            try:
                job = jobs.DropChunk(core.movers.next_id(), chunk.pool_uid, chunk.id)
                await core.movers.run(job, Priority.ROOM)
                break
            except MoverDied:
                if attempt == _DROP_ATTEMPTS:
                    raise
        core.arena.discard(chunk)
