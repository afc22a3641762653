"""The keeper of segments: makes them, seals them, flushes them, and frees them for new ones."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from typing import Final

from . import jobs
from .arena_format import PAGE
from .core import Core, Pool
from .devices import Devices
from .errors import DeviceError, JobFailed, MoverDied
from .index import Page
from .log import log
from .movers import Priority
from .nvme import Device, Segment, SegmentState
from .policy import decide_reclaim, fits_nvme, open_segments_limit, segment_target_bytes
from .segments import run_bytes

_FULL_PAUSE_S: Final = 10.0
"""After a device had no space left, it is written to no more for this long."""
_MAKE_ATTEMPTS: Final = 3
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class SegmentKeeper:
    """All pools' segments. Event loop thread only."""

    def __init__(self, core: Core, devices: Devices) -> None:
        self._core, self._devices = core, devices
        self._full_until: dict[str, float] = {}

    async def segment_for(self, pool: Pool, first: Page) -> Segment | None:
        """An open segment with room for a run that begins with `first`; None: there can be none."""
        needed = run_bytes([first.size])
        parent = first.node.parent.pages.get(first.key) if first.node.parent else None
        home = parent.nvme.segment if parent and parent.nvme else None
        if home is not None and home.state is SegmentState.OPEN and home.room(1) >= needed:
            return home
        open_ = [it for it in self._core.nvme.pool_segments(pool.uid) if it.state is SegmentState.OPEN]
        for segment in open_:
            if segment.room(1) < needed:
                self.seal_later(segment)
        fitting = [it for it in open_ if it.state is SegmentState.OPEN]
        target = segment_target_bytes(pool.nvme_quota, self._core.nvme.capacity_bytes)
        limit = open_segments_limit(pool.nvme_quota, target, len(self._core.nvme.open_devices()))
        if len(fitting) < limit:
            made = await self._make_segment(pool, needed, {it.device.name for it in fitting})
            if made is not None:
                return made
        still = [it for it in fitting if it.state is SegmentState.OPEN and it.room(1) >= needed]
        return min(still, key=lambda it: it.offset, default=None)

    async def _make_segment(self, pool: Pool, needed: int, in_use: set[str]) -> Segment | None:
        core = self._core
        size = segment_target_bytes(pool.nvme_quota, core.nvme.capacity_bytes)
        if needed + 4 * PAGE > size:
            return None
        while not fits_nvme(core.nvme, pool.uid, pool.nvme_quota, size):
            if not await self._reclaim(pool, size):
                return None
        now = asyncio.get_running_loop().time()
        devices = [it for it in core.nvme.open_devices() if self._full_until.get(it.name, 0.0) <= now]
        devices.sort(key=lambda it: it.name in in_use)
        if not devices:
            return None
        for _ in range(_MAKE_ATTEMPTS):
            segment = core.nvme.reserve(devices[0], pool.uid, size)
            segment.state = SegmentState.GONE  # until its file is there
            job = jobs.CreateSegment(core.movers.next_id(), str(segment.path), pool.uid, segment.sequence, size)
            try:
                await core.movers.run(job, Priority.WRITE)
            except MoverDied:
                core.nvme.discard(segment)
            except JobFailed as error:
                core.nvme.discard(segment)
                self._device_failed(segment.device, error)
                return None
            else:
                segment.state = SegmentState.OPEN
                return segment
        return None

    async def _reclaim(self, pool: Pool, wanted_bytes: int) -> bool:
        """Free one segment for `wanted_bytes` more; False: none needs to go, or none can."""
        victim = decide_reclaim(self._core.nvme, pool.uid, pool.nvme_quota, wanted_bytes)
        if victim is None:
            return False
        await self.drop(victim)
        return victim.sequence not in self._core.nvme.segments

    def seal_later(self, segment: Segment) -> None:
        """Put no more into an open segment, and write its summary once what is under way is written."""
        segment.state = SegmentState.SEALED
        segment.io += 1
        self._core.tasks.start("seal", self._seal(segment))

    async def _seal(self, segment: Segment) -> None:
        core = self._core
        job = jobs.SealSegment(core.movers.next_id(), str(segment.path), segment.pool_uid, segment.sequence)
        try:
            async with segment.lock:
                (done,) = await core.movers.run(job, Priority.WRITE)
            assert isinstance(done, jobs.Done)
            segment.synced = segment.written
            core.nvme.resize(segment, done.value or segment.file_bytes)
        except JobFailed as error:
            self._device_failed(segment.device, error)
        finally:
            segment.io -= 1
            pool = core.pools.get(segment.pool_uid)
            if pool is not None:
                pool.progress.fire()

    async def sync(self, segments: Iterable[Segment], deadline: float) -> bool:
        """Flush what was written to `segments`; False: it failed, or took longer."""
        dirty = [it for it in segments if it.synced < it.written and it.state is not SegmentState.GONE]
        if not dirty:
            return True
        syncs = [self._core.tasks.start("sync", self._sync_one(segment)) for segment in dirty]
        done, late = await asyncio.wait(syncs, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        return not late and all(task.result() for task in done)

    async def _sync_one(self, segment: Segment) -> bool:
        written = segment.written
        segment.io += 1
        try:
            await self._core.movers.run(jobs.SyncSegment(self._core.movers.next_id(), str(segment.path)), Priority.SYNC)
        except JobFailed as error:
            self.failed(segment, error)
            return False
        finally:
            segment.io -= 1
        segment.synced = max(segment.synced, written)
        return True

    def failed(self, segment: Segment, error: JobFailed) -> None:
        """A job on the segment failed: use it for reading only, and its device as the error allows."""
        self.retire(segment)
        self._device_failed(segment.device, error)

    def retire(self, segment: Segment) -> None:
        """Nothing more goes into the segment, so that a torn run is its last, which recovery checks."""
        segment.broken = True
        if segment.state is SegmentState.OPEN:
            segment.state = SegmentState.SEALED

    def _device_failed(self, device: Device, error: JobFailed) -> None:
        if isinstance(error, DeviceError) and error.errno in _FULL:
            self._full_until[device.name] = asyncio.get_running_loop().time() + _FULL_PAUSE_S
            log("device.full", device=device.name, path=device.path, error=error)
        elif isinstance(error, DeviceError):
            self._devices.close(device, str(error))
        else:
            log("write.failed", device=device.name, error=error)

    async def trim(self, pool: Pool) -> None:
        """Free segments that a lowered quota no longer allows; an open one is sealed first."""
        while await self._reclaim(pool, 0):
            pass
        if self._core.nvme.pool_bytes(pool.uid) > pool.nvme_quota:
            for segment in self._core.nvme.pool_segments(pool.uid):
                if segment.state is SegmentState.OPEN and segment.io == 0:
                    self.seal_later(segment)

    async def drop(self, segment: Segment) -> None:
        """Free an idle segment, durably. Its pages leave nvme first."""
        core = self._core
        pool = core.pools[segment.pool_uid]
        segment.state = SegmentState.GONE
        pages = list(segment.pages)
        for page in pages:
            if page.nvme is not None and page.nvme.segment is segment:
                pool.index.drop_nvme(page)
        pool.counters["pages_evicted_nvme"] += len(pages)
        job = jobs.Unlink(core.movers.next_id(), str(segment.path.parent), [segment.path.name])
        try:
            await core.movers.run(job, Priority.WRITE)
        except DeviceError as error:
            self._devices.close(segment.device, str(error))
        except JobFailed as error:
            segment.state = SegmentState.SEALED  # empty, and the next to be tried again
            log("segment.not_freed", path=segment.path, error=error)
        else:
            core.nvme.discard(segment)
