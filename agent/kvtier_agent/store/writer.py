"""Write-through: lays pages down on nvme in runs of one chain, and frees segments for new ones.

What a put stored is queued in chain order. A chain goes on in the segment that it is in, while that
is open; runs of one segment are written one after the other, those of different segments at once.
"""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from kvtier_client.protocol.messages import Reach

from . import jobs
from .arena_format import PAGE
from .core import Core, Pool, page_ref_of
from .devices import Devices
from .errors import DeviceError, JobFailed
from .index import Page
from .log import log
from .media import run_entries_at
from .movers import Priority
from .nvme import Device, Location, Segment, SegmentState
from .policy import decide_reclaim, fits_nvme, open_segments_limit, segment_target_bytes
from .segments import MAX_RUN_BYTES, MAX_RUN_PAGES, run_bytes, run_header_bytes

_RUNS_AT_ONCE: Final = 4
_FULL_PAUSE_S: Final = 10.0
"""After a device had no space left, it is written to no more for this long."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """Writes pages through. Event loop thread only."""

    def __init__(self, core: Core, devices: Devices) -> None:
        self._core, self._devices = core, devices
        self._queues: defaultdict[str, deque[Page]] = defaultdict(deque)
        self._working: set[str] = set()
        self._runs = asyncio.Semaphore(_RUNS_AT_ONCE)
        self._full_until: dict[str, float] = {}

    def has_place(self, pool: Pool) -> bool:
        """Whether the pool's pages are written to nvme at all."""
        target = segment_target_bytes(pool.nvme_quota, self._core.nvme.capacity_bytes)
        return target > 3 * PAGE and any(not device.error for device in self._core.nvme.devices)

    def enqueue(self, pool: Pool, pages: Sequence[Page]) -> None:
        """Write `pages`, chains in order, but for those that are on nvme or on their way already."""
        if not self.has_place(pool):
            return
        for page in pages:
            if page.nvme is None and page.slot is not None and page.attached and not page.writing:
                page.writing = True
                pool.index.pin(page)
                pool.writes += 1
                self._queues[pool.uid].append(page)
        if self._queues[pool.uid] and pool.uid not in self._working:
            self._working.add(pool.uid)
            self._core.tasks.start("write", self._work(pool))

    async def settle(self, pool: Pool, pages: Sequence[Page], reach: Reach, deadline: float) -> Reach:
        """How far all of `pages` got: `reach`, or what was reached by `deadline`."""
        while any(page.nvme is None for page in pages):
            if any(page.nvme is None and not page.writing for page in pages):
                return Reach.DRAM
            if not await pool.progress.wait(deadline):
                return Reach.DRAM
        if reach is Reach.FLUSHED:
            segments = {place.segment for page in pages if (place := page.nvme) is not None}
            if await self._sync(segments, deadline) and all(_is_flushed(page) for page in pages):
                return Reach.FLUSHED
        return Reach.SEALED

    async def flush(self, pool: Pool, deadline: float) -> bool:
        """Whether all that is queued was written, and all that was written flushed, by `deadline`."""
        while pool.writes:
            if not await pool.progress.wait(deadline):
                return False
        return await self._sync(set(self._core.nvme.pool_segments(pool.uid)), deadline)

    async def trim(self, pool: Pool) -> None:
        """Free segments that a lowered quota no longer allows."""
        while await self._reclaim(pool, 0):
            pass

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

    async def _work(self, pool: Pool) -> None:
        queue = self._queues[pool.uid]
        try:
            while queue:
                run = await self._next_run(pool, queue)
                if run is not None:
                    await self._runs.acquire()
                    self._core.tasks.start("run", self._write(pool, *run))
        finally:
            self._working.discard(pool.uid)

    async def _next_run(self, pool: Pool, queue: deque[Page]) -> tuple[Segment, int, list[Page]] | None:
        """Place the next run: its segment, its offset there, its pages. None: the next page cannot be written."""
        first = queue.popleft()
        segment = await self._segment_for(pool, first) if first.attached else None
        if segment is None:
            self._done_with(pool, [first])
            return None
        pages = [first]
        payload_bytes = first.slot_bytes
        while queue and queue[0].attached and _is_next(pages[-1], queue[0]):
            payload_bytes += queue[0].slot_bytes
            size = run_header_bytes(len(pages) + 1) + payload_bytes
            if len(pages) == MAX_RUN_PAGES or size > min(MAX_RUN_BYTES, segment.room(len(pages) + 1)):
                break
            pages.append(queue.popleft())
        size = run_bytes([page.size for page in pages])
        offset = segment.offset
        segment.offset += size
        segment.entries += len(pages)
        segment.io += 1
        return segment, offset, pages

    async def _write(self, pool: Pool, segment: Segment, offset: int, pages: list[Page]) -> None:
        """Write one placed run; what was not written for no fault of its device is queued again."""
        try:
            async with segment.lock:
                written = not segment.broken and await self._write_run(pool, segment, offset, pages)
        finally:
            self._runs.release()
            segment.io -= 1
            self._done_with(pool, pages)
        if not written:
            self.enqueue(pool, pages)

    async def _write_run(self, pool: Pool, segment: Segment, offset: int, pages: list[Page]) -> bool:
        """Whether the run is on the medium. Pages whose arena copy is damaged are cut from the index."""
        refs = [page_ref_of(page, page.slot) for page in pages if page.slot is not None]  # pinned: all have one
        job = jobs.WriteRun(
            self._core.movers.next_id(),
            pool.uid,
            pages[0].node.layout,
            str(segment.path),
            segment.device.direct,
            segment.sequence,
            offset,
            refs,
        )
        try:
            (result,) = await self._core.movers.run(job, Priority.WRITE)
        except JobFailed as error:
            self._failed(segment, error)
            return False
        assert isinstance(result, jobs.Moved)
        if result.bad:
            segment.broken = True  # what is behind the gap in it could be found by a scan only
            self._seal_if_open(segment)
            log("page.damaged", pool=pool.uid, pages=len(result.bad))
            for page in (pages[index] for index in result.bad):
                if page.attached:
                    pool.index.cut(page)
            return False
        sizes = [page.size for page in pages]
        segment.written = offset + run_bytes(sizes)
        for page, place, checksum in zip(pages, run_entries_at(offset, sizes), result.checksums, strict=True):
            if page.attached and segment.state is not SegmentState.GONE:
                pool.index.set_nvme(page, Location(segment, place, checksum))
                pool.counters["pages_written_nvme"] += 1
                pool.counters["bytes_written_nvme"] += page.size
        return True

    def _done_with(self, pool: Pool, pages: Sequence[Page]) -> None:
        for page in pages:
            page.writing = False
            pool.writes -= 1
            pool.index.unpin(page)
        pool.progress.fire()

    def _failed(self, segment: Segment, error: JobFailed) -> None:
        """Nothing more goes into this segment, so that a torn run is its last, which recovery checks."""
        segment.broken = True
        self._seal_if_open(segment)
        self._device_failed(segment.device, error)

    def _seal_if_open(self, segment: Segment) -> None:
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

    async def _segment_for(self, pool: Pool, first: Page) -> Segment | None:
        """An open segment with room for a run that begins with `first`; None: there can be none."""
        needed = run_bytes([first.size])
        parent = first.node.parent.pages.get(first.key) if first.node.parent else None
        home = parent.nvme.segment if parent and parent.nvme else None
        if home is not None and home.state is SegmentState.OPEN and home.room(1) >= needed:
            return home
        open_ = [it for it in self._core.nvme.pool_segments(pool.uid) if it.state is SegmentState.OPEN]
        for segment in open_:
            if segment.room(1) < needed:
                self._seal_later(segment)
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
        segment = core.nvme.reserve(devices[0], pool.uid, size)
        segment.state = SegmentState.GONE  # until its file is there
        job = jobs.CreateSegment(core.movers.next_id(), str(segment.path), pool.uid, segment.sequence, size)
        try:
            await core.movers.run(job, Priority.WRITE)
        except JobFailed as error:
            core.nvme.discard(segment)
            self._device_failed(segment.device, error)
            return None
        segment.state = SegmentState.OPEN
        return segment

    async def _reclaim(self, pool: Pool, wanted_bytes: int) -> bool:
        """Free one segment for `wanted_bytes` more; False: none needs to go, or none can."""
        victim = decide_reclaim(self._core.nvme, pool.uid, pool.nvme_quota, wanted_bytes)
        if victim is None:
            return False
        await self.drop(victim)
        return victim.sequence not in self._core.nvme.segments

    def _seal_later(self, segment: Segment) -> None:
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
            core.pools[segment.pool_uid].progress.fire()

    async def _sync(self, segments: set[Segment], deadline: float) -> bool:
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
            self._failed(segment, error)
            return False
        finally:
            segment.io -= 1
        segment.synced = max(segment.synced, written)
        return True


def _is_flushed(page: Page) -> bool:
    return page.nvme is not None and page.nvme.offset < page.nvme.segment.synced


def _is_next(page: Page, other: Page) -> bool:
    """Whether `other` goes on where `page` ends: another page of the block, or of the next block."""
    return other.node is page.node or other.node.parent is page.node
