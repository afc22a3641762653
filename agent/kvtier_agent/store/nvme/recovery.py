"""Recovery: devices are listed, then each pool's segments are read back into its index, deletions applied."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

import numpy as np

from ..errors import FormatRefused, JobFailed, MoverDied
from ..log import log
from ..ports import PoolView
from . import jobs
from .books import Books
from .devices import FOUND_MARK, Device, Priority
from .health import is_gone
from .journal import Journal
from .keeper import Keeper
from .placement import Segment, SegmentState
from .records import Deleted, Filter, pools_taken_from
from .segments import ENTRY_TYPE, SegmentId

_STAGE_S: Final = 120.0
"""A segment that was not read by then is looked at again later."""
_RETRY_S: Final = 60.0
"""Between tries at a segment that cannot be read, at most."""
_AT_ONCE: Final = 6
"""Segments of one pool that are read at once on each device."""

_UNREAD: Final = "some of it could not be read; look at the kernel's log; the next start of the store tries it again"
_LATE: Final = "some of it came after its pools were in use; the store starts itself anew to read it in"


class _Contents:
    """What came of a segment so far."""

    def __init__(self) -> None:
        self.first: jobs.Staged | None = None
        self.pages = 0
        self.complete = self.given_up = False


class Recovery:
    """Reads the devices back into the books and the pools' indexes. Event loop thread only."""

    def __init__(self, books: Books, journal: Journal, keeper: Keeper) -> None:
        self._books, self._journal, self._keeper = books, journal, keeper
        self._listed: set[str] = set()
        self._partly: set[str] = set()
        """Of these, devices with units that could not be read: nobody knows what lies there."""
        self._staged: dict[str, PoolView] = {}
        self._outdated: set[str] = set()
        """Pools in use that have what a device, which came late, knew to be gone."""
        self._put_off: set[int] = set()
        """Segments that are left for a start."""
        self._failed: set[int] = set()
        """Segments that could not be read although their device was there: a start would not help."""
        self._attempts: Counter[int] = Counter()
        self._due: dict[int, float] = {}
        """When to try a segment again that was not read."""
        self.found: Counter[str] = Counter(segments_sealed=0, segments_scanned=0)
        """Segments that were read back, by how."""

    async def list_devices(self) -> set[str]:
        """Open all devices, and count what lies on them: the pools that have something there."""
        await asyncio.gather(*(it.opened() for it in self._books.devices))
        found = await asyncio.gather(*(self._list(it) for it in self._books.devices if it.health.readable))
        self._count([it for part in found for it in part])
        return {it.id.pool_uid for it in self._books.segments.values()}

    async def list_late(self, device: Device) -> set[str]:
        """As list_devices, of one that was not listed then; nothing, where that fails again."""
        found = await self._list(device)
        self._count(found)
        return {segment.pool for _, segment in found}

    def is_listed(self, device: Device) -> bool:
        """Whether it is known what lies on the device."""
        return device.name in self._listed

    def _count(self, found: list[tuple[Device, jobs.UnitFound]]) -> None:
        """Older segments get lower numbers, so that of two copies of a page the index takes the newer."""
        highest = max((it.cutoff for it in self._journal.records), default=0)
        copies = dict.fromkeys((device for device, _ in found), FOUND_MARK)  # nobody knows what moved last
        for device, it in sorted(found, key=lambda pair: pair[1].sequence):
            id_ = SegmentId(it.pool, it.sequence, it.nonce)
            segment = Segment(self._books.next_number(), device, it.unit, id_, device.unit_bytes)
            segment.state = SegmentState.SEALED
            segment.staged = False
            segment.mark, segment.copies = FOUND_MARK, copies
            self._books.adopt(segment)
            highest = max(highest, it.sequence)
        if highest:
            self._books.serials_from(highest)
        for device in self._books.devices:
            if device.name in self._listed - self._partly:
                self._journal.counted(device)

    async def _list(self, device: Device) -> list[tuple[Device, jobs.UnitFound]]:
        units: list[jobs.UnitFound] = []
        try:
            known = list(self._journal.records)
            found = await self._journal.load(device)
            if self._staged:
                self._outdated |= {uid for uid in pools_taken_from(found, known) if self._is_in_use(uid)}
            job = jobs.ListUnits(device.next_id())
            last = await device.run(job, Priority.RECORD, lambda part: units.extend(part.units))
        except (JobFailed, FormatRefused) as error:
            log("device.not_listed", device=device.name, error=error)
            self._journal.unload(device)
            return []
        units += last.units
        self._listed.add(device.name)
        if last.unread:
            self._partly.add(device.name)
            device.note = _UNREAD
        device.adopt([*(it.unit for it in units), *last.foreign])
        log("device.listed", device=device.name, segments=len(units), damaged=last.damaged)
        return [(device, it) for it in units]

    def _is_in_use(self, pool_uid: str) -> bool:
        pool = self._staged.get(pool_uid)
        return pool is not None and (pool.index.blocks > 0 or pool.index.linking)

    async def stage(self, pool: PoolView) -> None:
        """Give the pool's index what its segments hold, newest state of deletions applied."""
        started = time.monotonic()
        self._staged[pool.uid] = pool
        ttl_s = pool.grant.ttl_s if pool.grant is not None else 0
        chosen = Filter(pool.uid, self._journal.records, int(time.time()) - ttl_s if ttl_s else 0)
        for it in self._journal.records:
            if isinstance(it, Deleted) and it.pool == pool.uid:
                pool.index.stage_deleted(it.layout, it.prints, it.cutoffs)
        segments = [
            it
            for it in self._books.space(pool.uid).segments.values()
            if not it.staged and not it.io and it.device.health.readable and self._is_due(it)
        ]
        turns = {it: asyncio.Semaphore(_AT_ONCE) for it in self._books.devices}
        hung: set[Device] = set()

        async def one(segment: Segment) -> int:
            async with turns[segment.device]:
                if segment.device in hung or not segment.device.health.readable:
                    return 0
                pages = await self._stage(pool, segment, chosen)
                if pages is None and segment.device not in hung:
                    hung.add(segment.device)
                    segment.device.give_up()
                return pages or 0

        pages = await asyncio.gather(*(one(it) for it in sorted(segments, key=lambda it: it.number)))
        log(
            "pool.staged",
            pool=pool.uid,
            segments=len(segments),
            pages=sum(pages),
            took_s=round(time.monotonic() - started, 3),
        )

    async def _stage(self, pool: PoolView, segment: Segment, chosen: Filter) -> int | None:
        """How many pages the segment gave; None: its device hangs.

        One without any is freed, one without a summary gets it. One that does not come in time, or not at all, is left
        for later.
        """
        contents = _Contents()
        segment.io += 1
        segment.staged = True
        reading = self._books.tasks.start("stage", self._read(pool, segment, chosen, contents))
        await asyncio.wait((reading,), timeout=_STAGE_S)
        first = contents.first
        if not contents.complete or first is None:
            contents.given_up = True
            segment.staged = False
            self._attempts[segment.number] += 1
            pause_s = min(2.0 ** min(self._attempts[segment.number], 16), _RETRY_S)
            self._due[segment.number] = time.monotonic() + pause_s
            log("segment.not_read", device=segment.device.name, unit=segment.unit)
            return 0 if reading.done() else None
        self.found["segments_sealed" if first.sealed else "segments_scanned"] += 1
        segment.sealed_on_media = first.sealed
        segment.entries, segment.top = contents.pages, first.end
        segment.runs = [] if first.lost else list(first.runs)  # a summary would speak of what is lost, too
        if first.lost:
            log("segment.torn", device=segment.device.name, unit=segment.unit, pages=first.lost)
        if contents.pages == 0:
            self._books.tasks.start("free", self._keeper.free(pool, segment))
        elif not first.sealed:
            self._books.tasks.start("seal", self._keeper.seal(segment))
        return contents.pages

    async def _read(self, pool: PoolView, segment: Segment, chosen: Filter, contents: _Contents) -> None:
        """Have the segment read, and stage its parts as they come."""
        device = segment.device

        def take(part: jobs.Staged) -> None:
            if contents.given_up:
                return
            contents.first = contents.first or part
            entries = np.frombuffer(part.entries, ENTRY_TYPE)
            keep = chosen.keep(entries)
            kept = entries[keep] if not keep.all() else entries
            if len(kept) < len(entries):
                pool.index.stage_links(entries[~keep].tobytes(), part.layouts)
            if len(kept):
                contents.pages += pool.index.stage_entries(segment.number, kept.tobytes(), part.layouts)

        try:
            take(await device.run(jobs.StageUnit(device.next_id(), segment.unit, *segment.id), Priority.STAGE, take))
            contents.complete = True
        except (JobFailed, FormatRefused) as error:
            log("segment.not_read", device=device.name, unit=segment.unit, error=error)
            if not isinstance(error, MoverDied) and not is_gone(error):
                self._failed.add(segment.number)
        finally:
            segment.io -= 1

    def put_off(self, pool: PoolView) -> None:
        """What is left of the pool waits for a start, untouched; its devices say so."""
        for segment in self._books.space(pool.uid).segments.values():
            if not segment.staged and segment.number not in self._put_off:
                self._put_off.add(segment.number)
                segment.device.note = _UNREAD if segment.number in self._failed else _LATE
                log("segment.put_off", pool=pool.uid, device=segment.device.name, unit=segment.unit)

    def waits_for_start(self) -> bool:
        """Whether a start would read in what came late, and find all devices, each with all records."""
        late = self._outdated or any(number in self._books.segments for number in self._put_off - self._failed)
        return bool(late) and self._journal.is_settled and all(it.health.readable for it in self._books.devices)

    def forget(self, pool: PoolView) -> None:
        """The pool is purged: nothing of it waits for a start."""
        self._put_off.difference_update(self._books.space(pool.uid).segments)
        self._staged.pop(pool.uid, None)
        self._outdated.discard(pool.uid)

    def is_whole(self, pool: PoolView) -> bool:
        """Whether there is nothing of the pool that can be read in now."""
        return not any(
            not it.staged and not it.io and it.number not in self._put_off and it.device.health.readable
            for it in self._books.space(pool.uid).segments.values()
            if self._is_due(it)
        )

    def _is_due(self, segment: Segment) -> bool:
        return time.monotonic() >= self._due.get(segment.number, 0.0)
