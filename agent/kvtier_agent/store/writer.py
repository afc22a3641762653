"""Write-through: lays pages down on nvme in runs of one chain.

What a put stored is queued in chain order. A chain goes on in the segment that it is in, while that
is open; runs of one segment are written one after the other, those of different segments at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from kvtier_client.protocol.messages import Reach

from . import jobs
from .arena_format import PAGE
from .core import Core, Pool, page_ref_of
from .errors import JobFailed
from .index import Page
from .keeper import SegmentKeeper
from .log import log
from .media import run_entries_at
from .movers import Priority
from .nvme import Location, Segment, SegmentState
from .policy import segment_target_bytes
from .segments import MAX_RUN_BYTES, MAX_RUN_PAGES, run_bytes, run_header_bytes

_RUNS_AT_ONCE: Final = 4


class Writer:
    """Writes pages through. Event loop thread only."""

    def __init__(self, core: Core, keeper: SegmentKeeper) -> None:
        self._core, self._keeper = core, keeper
        self._queues: defaultdict[str, deque[Page]] = defaultdict(deque)
        self._working: set[str] = set()
        self._runs = asyncio.Semaphore(_RUNS_AT_ONCE)

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
            if await self._keeper.sync(segments, deadline) and all(_is_flushed(page) for page in pages):
                return Reach.FLUSHED
        return Reach.SEALED

    async def flush(self, pool: Pool, deadline: float) -> bool:
        """Whether all that is queued was written, and all that was written flushed, by `deadline`."""
        while pool.writes:
            if not await pool.progress.wait(deadline):
                return False
        return await self._keeper.sync(set(self._core.nvme.pool_segments(pool.uid)), deadline)

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
        segment = await self._keeper.segment_for(pool, first) if _is_worth_writing(first) else None
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
            self._keeper.failed(segment, error)
            return False
        assert isinstance(result, jobs.Moved)
        if result.bad:
            self._keeper.retire(segment)
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


def _is_flushed(page: Page) -> bool:
    return page.nvme is not None and page.nvme.offset < page.nvme.segment.synced


def _is_worth_writing(page: Page) -> bool:
    """Whether recovery would find the page: not if its parent could not be written."""
    above = page.node.parent
    if above is None or not page.attached:
        return page.attached
    parent = above.pages[page.key]
    return parent.nvme is not None or parent.writing


def _is_next(page: Page, other: Page) -> bool:
    """Whether `other` goes on where `page` ends: another page of the block, or of the next block."""
    return other.node is page.node or other.node.parent is page.node
