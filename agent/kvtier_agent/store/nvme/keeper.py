"""The keeper of units: makes segments, seals them, and frees those whose pages are worth least."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from ..aio import let_others
from ..errors import FormatRefused, JobFailed
from ..log import log
from ..policy import most_slots
from ..ports import PoolView
from . import jobs
from .books import Books
from .devices import FOUND_MARK, Device, Priority
from .health import DeviceState
from .placement import Budget, Segment, SegmentState, open_limit
from .segments import SegmentId

_DROP_STEP: Final = 500
"""Pages taken out of the index at a stretch."""

_SLACK: Final = 1.1
_TRIM_SLACK: Final = 4.0
"""Who lowers a quota rather keeps what is new than what is much used."""
_SPARE_FROM: Final = 16
"""A pool of so many units leaves one free, so that pages can be moved."""
_VICTIM_POLLS: Final = 500
_PATIENCE_S: Final = 10.0
"""With a device that makes or frees a unit: others wait for room meanwhile."""
_SEAL_POLL_S: Final = 0.01
_SEAL_POLLS: Final = 6000
"""As long as a segment waits for its last runs; after that a crash costs reading its unit, no more."""


class Keeper:
    """All pools' units. Event loop thread only."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._making = asyncio.Lock()
        self.compact: Callable[[PoolView, Device], Awaitable[bool]] = _do_nothing
        """Frees a unit, if that loses no page; makes no segment but of the spared unit."""
        self.rescue: Callable[[PoolView, Segment], Awaitable[None]] = _rescue_nothing
        """Moves what is worth most out of a unit that is about to be freed, likewise."""

    def quota_bytes(self, pool: PoolView) -> int:
        """What the pool may have, in bytes."""
        return min(_granted_bytes(pool), self._books.capacity_bytes)

    def quota_units(self, pool: PoolView, unit_bytes: int) -> int:
        """Units that the pool may have."""
        return self.quota_bytes(pool) // unit_bytes if unit_bytes else 0

    def budget(self, pool: PoolView) -> Budget:
        """What the pool may spend on reservations."""
        books = self._books
        quota = self.quota_bytes(pool)
        used = books.used_bytes(pool.uid)
        on_devices = sum(it.free_units * it.unit_bytes for it in books.devices if it.health.has_room)
        rest = sum(it.unit_bytes - it.top for it in books.space(pool.uid).open.values())
        free = max(0, min(quota - used, books.capacity_bytes - books.total_bytes, on_devices)) + rest
        return Budget(free + books.space(pool.uid).reserved_bytes, quota)

    async def make_spare(self, pool: PoolView, device: Device) -> Segment | None:
        """As `make_segment`, for pages that are moved: the unit that is spared for them, and nothing freed."""
        if not device.health.has_room or not self.fits(pool, device, spare=0):
            return None
        return await self._make(pool, device)

    async def make_segment(self, pool: PoolView, device: Device) -> Segment | None:
        """A new open segment on the device; None: there is no room, or it failed."""
        async with self._making:
            if not self.fits(pool, device):  # so that no unit is spared for what is merely kept free in it
                self._books.space(pool.uid).shrink_to(self.budget(pool).reserve_bytes)
            full = device.health.state is DeviceState.FULL
            while full or not self.fits(pool, device):
                only = device if full or device.free_units <= 1 else None
                if not await self.compact(pool, device) and not await self._make_room(pool, device, only):
                    return None
                full = False
            return await self._make(pool, device)

    async def _make_room(self, pool: PoolView, device: Device, only: Device | None) -> bool:
        """Free the unit that is worth least, on device `only` if given, unless the cleaner is quicker. False: no."""
        for _ in range(_VICTIM_POLLS):
            await let_others()
            victim = await self._next_victim(pool, only)
            if victim is None:
                return False
            await let_others()
            await self.rescue(pool, victim)
            if self.is_idle(pool, victim):
                return await self.free(pool, victim)
            await asyncio.sleep(_SEAL_POLL_S)  # the cleaner is at it as well
            if self.fits(pool, device):
                return True
        return False

    async def _make(self, pool: PoolView, device: Device) -> Segment | None:
        self._limit_open(pool, device)
        unit = device.take_unit()
        if unit is None:
            return None
        books = self._books
        id_ = SegmentId(pool.uid, books.next_serial(), os.urandom(8))
        segment = Segment(books.next_number(), device, unit, id_, device.unit_bytes)
        books.adopt(segment)
        return segment if await self._in_time(segment, self._init(pool, segment)) else None

    async def _init(self, pool: PoolView, segment: Segment) -> bool:
        """Have the segment's header written: it is the pool's open one then. False: it is not."""
        books, device = self._books, segment.device
        try:
            await device.run(jobs.InitUnit(device.next_id(), segment.unit, *segment.id), Priority.WRITE)
        except (JobFailed, FormatRefused) as error:
            log("segment.not_made", pool=pool.uid, device=device.name, error=error)
            segment.state = SegmentState.GONE
            books.discard(segment)
            return False
        if segment.state is not SegmentState.MAKING:  # purged meanwhile
            return False
        segment.state = SegmentState.OPEN
        before = books.space(pool.uid).open.get(device.name)
        books.space(pool.uid).open[device.name] = segment
        if before is not None:
            books.space(pool.uid).retire_top(before)
        return True

    async def _in_time(self, segment: Segment, work: Coroutine[Any, Any, bool]) -> bool:
        """What comes of work on a segment; False where a device takes too long: it goes on, and nobody waits for it."""

        def ended(_: object) -> None:
            segment.io -= 1

        segment.io += 1
        task = self._books.tasks.start("unit", work)
        task.add_done_callback(ended)
        done, _ = await asyncio.wait((task,), timeout=_PATIENCE_S)
        return bool(done) and not task.cancelled() and task.result()

    def fits(self, pool: PoolView, device: Device, spare: int | None = None) -> bool:
        """Whether the pool may take another unit of the device, with `spare` ones left for moving pages into."""
        books, size = self._books, device.unit_bytes
        if spare is None:
            spare = int(self.quota_units(pool, size) >= _SPARE_FROM)
        used = books.used_bytes(pool.uid)
        return (
            device.free_units > spare
            and used + size <= (self.quota_units(pool, size) - spare) * size
            and books.total_bytes + size <= books.capacity_bytes
            and not self._is_crowded(pool)
        )

    def _is_crowded(self, pool: PoolView) -> bool:
        """Whether the segments have as many pages, dead ones included, as the index has memory for."""
        books, mean = self._books, self._books.mean_page_bytes
        if not mean:
            return False
        quota = self.quota_bytes(pool)
        mine = sum(it.entries for it in books.space(pool.uid).segments.values())
        everyone = sum(it.entries for it in books.segments.values())
        return mine >= most_slots(quota, mean) or everyone >= most_slots(books.capacity_bytes, mean)

    def victim(self, pool: PoolView, device: Device | None = None, slack: float = _SLACK) -> Segment | None:
        """The unit to free for the pool: of its own, sealed and idle, that whose pages are worth least.

        Of those that are worth up to `slack` times as much, the oldest.
        """
        mine = {
            it: pool.index.segment_live(it.number)[2]
            for it in self._books.space(pool.uid).segments.values()
            if self.is_idle(pool, it) and (device is None or it.device is device)
        }
        limit = min(mine.values(), default=0.0) * slack
        return min((it for it, worth in mine.items() if worth <= limit), key=lambda it: it.number, default=None)

    def is_idle(self, pool: PoolView, segment: Segment) -> bool:
        """Whether nothing goes on in the segment, and nothing is to be added, so that it may be freed."""
        if not segment.staged or segment.io or not all(it.health.writable for it in _unflushed(segment)):
            return False
        if segment.state is SegmentState.OPEN:
            is_top = self._books.space(pool.uid).open.get(segment.device.name) is segment
            return not is_top and not segment.live_reservations
        return segment.state is SegmentState.SEALED

    async def _next_victim(self, pool: PoolView, device: Device | None, slack: float = _SLACK) -> Segment | None:
        """As `victim`, after waiting for one that is still being sealed; where all are open, one of these is sealed."""
        space = self._books.space(pool.uid)
        for _ in range(_VICTIM_POLLS):
            victim = self.victim(pool, device, slack)
            if victim is not None:
                return victim
            mine = [it for it in space.segments.values() if it.staged and (device is None or it.device is device)]
            if not any(it.state is SegmentState.SEALED for it in mine):
                open_ = [it for it in mine if it.state is SegmentState.OPEN]
                if not open_:
                    return None
                self.seal_later(min(open_, key=lambda it: it.number))
            await asyncio.sleep(_SEAL_POLL_S)
        return None

    async def free(self, pool: PoolView, segment: Segment) -> bool:
        """Take an idle segment's pages off nvme, and free its unit durably. False: a device did not do its part.

        What was moved out of it is flushed first: until then, a power cut brings the pages back from here.
        """
        segment.state = SegmentState.GONE
        live, _, _ = pool.index.segment_live(segment.number)
        while pool.index.drop_segment(segment.number, _DROP_STEP):
            await let_others()
        pool.counters["pages_evicted_nvme"] += live
        self._books.space(pool.uid).forget(segment)
        return await self._in_time(segment, self._free(pool, segment))

    async def _free(self, pool: PoolView, segment: Segment) -> bool:
        device = segment.device
        try:
            flushed = await self._flushed(_unflushed(segment))
            if flushed:
                await device.run(jobs.FreeUnits(device.next_id(), [segment.unit]), Priority.WRITE)
        except (JobFailed, FormatRefused) as error:
            log("segment.not_freed", pool=pool.uid, device=device.name, unit=segment.unit, error=error)
            flushed = False
        if not flushed:
            segment.state = SegmentState.SEALED  # empty, and the next to be tried again
            return False
        self._books.discard(segment)
        pool.progress.fire()
        return True

    def _limit_open(self, pool: PoolView, device: Device) -> None:
        """Where too many segments are open, seal those that have the least space left."""
        space = self._books.space(pool.uid)
        limit = open_limit(self.quota_units(pool, device.unit_bytes), device.unit_bytes, len(self._books.devices))
        full = [it for it in space.open_segments() if space.open.get(it.device.name) is not it]
        full.sort(key=lambda it: it.hole_bytes + it.reserved_bytes)
        for segment in full[: max(0, len(full) + len(space.open) - limit)]:
            self.seal_later(segment)

    def seal_idle(self, pool: PoolView) -> None:
        """Seal full segments in which nothing is reserved any more, and no space worth filling is left."""
        space = self._books.space(pool.uid)
        for segment in space.open_segments():
            full = segment.hole_bytes < segment.unit_bytes // 32
            if full and not segment.live_reservations and space.open.get(segment.device.name) is not segment:
                self.seal_later(segment)

    def seal_later(self, segment: Segment) -> asyncio.Task[None] | None:
        """Put no more into an open segment, and write its summary once what is under way is written."""
        if segment.state is not SegmentState.OPEN:
            return None
        segment.state = SegmentState.SEALED
        self._books.space(segment.id.pool_uid).forget(segment)
        return self._books.tasks.start("seal", self.seal(segment))

    async def seal(self, segment: Segment) -> None:
        """Write the summary of a segment that takes no more runs. A failure costs time after a crash, no more.

        Recovery believes a summary, so what it speaks of is flushed first.
        """
        for _ in range(_SEAL_POLLS):
            if not segment.io:
                break
            await asyncio.sleep(_SEAL_POLL_S)
        if (
            segment.io
            or not segment.runs  # nothing is known of what lies there: a summary would say that nothing does
            or segment.state is not SegmentState.SEALED
            or segment.sealed_on_media
            or not segment.device.health.writable
        ):
            return
        segment.io += 1
        device = segment.device
        try:
            if not await device.flush(segment.mark):
                return
            await device.run(
                jobs.Seal(device.next_id(), segment.unit, *segment.id, sorted(segment.runs)), Priority.CLEAN
            )
            segment.sealed_on_media = True
            segment.runs.clear()
            device.written_mark += 1
        except (JobFailed, FormatRefused) as error:
            log("segment.not_sealed", device=device.name, unit=segment.unit, error=error)
        finally:
            segment.io -= 1

    async def trim(self, pool: PoolView) -> None:
        """Free what a lowered quota no longer allows."""
        over = self._books.used_bytes(pool.uid) - _granted_bytes(pool)
        if over > 0:
            for segment in self._books.space(pool.uid).open_segments():
                self._books.space(pool.uid).lapse_all(segment)
                if self._books.space(pool.uid).open.get(segment.device.name) is not segment:
                    self.seal_later(segment)
        while over > 0 and (victim := await self._next_victim(pool, None, _TRIM_SLACK)) is not None:
            if not await self.free(pool, victim):
                return
            over -= victim.unit_bytes

    async def flush(self, segments: Iterable[Segment]) -> bool:
        """Whether all that was written to these is flushed."""
        marks: dict[Device, int] = {}
        for it in segments:
            marks[it.device] = max(marks.get(it.device, 0), it.mark)
        return await self._flushed(marks)

    async def _flushed(self, marks: Mapping[Device, int]) -> bool:
        """Whether each device has flushed what was written up to its mark."""
        return all(await asyncio.gather(*(device.flush(mark) for device, mark in marks.items())))


def _unflushed(segment: Segment) -> dict[Device, int]:
    """Of its `copies`, those that a power cut may take.

    What was there before the start is not waited for where a device takes no writes.
    """
    return {
        device: mark
        for device, mark in segment.copies.items()
        if device.flushed_mark < mark and (device.health.writable or mark > FOUND_MARK)
    }


async def _rescue_nothing(pool: PoolView, victim: Segment) -> None:
    del pool, victim


def _granted_bytes(pool: PoolView) -> int:
    return pool.grant.nvme_quota if pool.grant is not None else 0


async def _do_nothing(pool: PoolView, device: Device) -> bool:
    del pool, device
    return False
