"""Promotion: brings pages from nvme into DRAM slots, in large requests, several in flight on each device."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ..arena_format import PAGE, round_up
from ..errors import FormatRefused, JobFailed
from ..log import log
from ..ports import PoolView, SlotRoom
from . import jobs
from .books import Books
from .devices import Priority
from .figures import ReadFigures

REQUEST_BYTES: Final = (8 << 20) + (64 << 10)
"""At most of one device request, where the chain lies contiguous: a whole run as the writer lays it, and headers."""
MAX_GAP_BYTES: Final = 64 << 10
"""What is read and thrown away between two pages rather than begin a new request: run headers, mostly."""
_MAX_PIECES: Final = 500
"""Pages of one request: with the gaps between them it stays below what one vectored call takes."""
_STALL_S: Final = 0.01


class Loader:
    """Loads pages. Event loop thread only."""

    def __init__(self, books: Books, room: SlotRoom) -> None:
        self._books, self._room = books, room
        self._figures: defaultdict[str, ReadFigures] = defaultdict(ReadFigures)

    def gauges(self, pool: PoolView) -> dict[str, float]:
        """How the pool's chains were read lately."""
        figures = self._figures.get(pool.uid)
        return figures.gauges() if figures is not None else {}

    def forget(self, pool: PoolView) -> None:
        """The pool is purged."""
        self._figures.pop(pool.uid, None)

    async def load(self, pool: PoolView, pages: Sequence[int], deadline: float) -> None:
        """Bring `pages`, in chain order and pinned by the caller, into DRAM as far as there is room and time.

        What arrives after `deadline` is kept too; `progress` fires as they come.
        """
        loop = asyncio.get_running_loop()
        under_way: list[asyncio.Task[None]] = []
        left = list(pages)
        self._figures[pool.uid].look(pool, left, loop.time())
        while left:
            free = self._free_slots(pool, left)
            plan = pool.index.read_plan(left[:free], REQUEST_BYTES, _MAX_PIECES, MAX_GAP_BYTES, time.time())
            readable = True
            for (segment, offset, size, taken), following in zip(plan, [*plan[1:], None], strict=False):
                if following is not None and following[0] == segment:
                    gap = following[1] - offset - size
                    size += gap if 0 < gap <= MAX_GAP_BYTES else 0  # the device sees one stretch
                readable = self._submit(pool, segment, offset, size, taken, under_way) and readable
            if not readable:
                break  # what comes behind a block that is a miss is of no use
            # Each is tried once; and others may bring some of them up: no room is to be made for those.
            tried = {page for _, _, _, taken in plan for page in taken}
            left = [page for page in pool.index.without_slot(left) if page not in tried]
            place = pool.index.place_of(left[0]) if left else None
            if place is None or loop.time() >= deadline:
                break
            if not await self._room.make_room(pool, round_up(place[2], PAGE), deadline):
                break
            if free and not plan:  # there was room, and someone else took it
                await pool.progress.wait(min(deadline, loop.time() + _STALL_S))
        if under_way:
            await asyncio.wait(under_way, timeout=max(0.0, deadline - loop.time()))

    def _free_slots(self, pool: PoolView, pages: Sequence[int]) -> int:
        """For how many of `pages`, going by the first one's class, slots may be taken now."""
        place = pool.index.place_of(pages[0])
        free = self._room.free_slots(pool, round_up(place[2], PAGE)) if place is not None else None
        return len(pages) if free is None else min(free, len(pages))

    def _submit(
        self,
        pool: PoolView,
        number: int,
        offset: int,
        size: int,
        pages: list[int],
        under_way: list[asyncio.Task[None]],
    ) -> bool:
        """Have one request read. False: its device is not to be read from now."""
        segment = self._books.segments.get(number)
        if segment is None or not segment.device.health.readable:
            pool.index.finish_read([], [], pages)
            pool.progress.fire()
            return False
        device = segment.device
        job = jobs.Read(
            device.next_id(), pool.uid, segment.unit, offset, size, pool.index.refs(pages), pool.fills.begin()
        )
        segment.io += 1
        under_way.append(self._books.tasks.start("load", self._read(pool, number, size, pages, job)))
        return True

    async def _read(self, pool: PoolView, number: int, size: int, pages: list[int], job: jobs.Read) -> None:
        segment = self._books.segments[number]
        device = segment.device
        device.estimate.begun(size, time.monotonic())
        bad: list[int] = []
        failed = pages
        good: list[int] = []
        try:
            result = await device.run(job, Priority.READ)
            bad = [pages[index] for index in result.bad]
            failed = [pages[index] for index in result.failed]
            spoilt = {*bad, *failed}
            good = [page for page in pages if page not in spoilt]
        except (JobFailed, FormatRefused) as error:
            log("load.failed", pool=pool.uid, device=device.name, error=error)
        finally:
            pool.fills.end(job.begun)
            device.estimate.ended(size, time.monotonic(), good=bool(good))
            segment.io -= 1
            device.counters["reads"] += 1
            device.counters["read_bytes"] += size
            pool.counters["requests_read_nvme"] += 1
            self._figures[pool.uid].read(size)
            read_bytes = sum(place[2] for page in good if (place := pool.index.place_of(page)) is not None)
            pool.index.finish_read(good, bad + (failed if good else []), [] if good else failed)
            pool.counters["pages_read_nvme"] += len(good)
            pool.counters["bytes_read_nvme"] += read_bytes
            pool.counters["bytes_read_nvme_direct"] += read_bytes if device.direct else 0
            lost = len(bad) + (len(failed) if good else 0)
            if lost:
                pool.counters["pages_lost_nvme"] += lost
                log("page.lost", pool=pool.uid, device=device.name, unit=segment.unit, pages=lost)
            pool.progress.fire()
