"""Promotion: brings pages from nvme into DRAM slots, in batches of what lies together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import Final

from . import jobs
from .arena import Slot
from .core import Core, Pool, page_ref_of
from .devices import Devices
from .errors import DeviceError, JobFailed
from .index import Page
from .log import log
from .movers import Priority
from .nvme import Location
from .policy import NoRoom
from .room import Room

_BATCH_BYTES: Final = 4 << 20
_BATCH_PAGES: Final = 500

Batch = list[tuple[Page, Slot, Location]]


class Loader:
    """Loads pages. Event loop thread only."""

    def __init__(self, core: Core, room: Room, devices: Devices) -> None:
        self._core, self._room, self._devices = core, room, devices

    async def load(self, pool: Pool, pages: Sequence[Page], deadline: float) -> None:
        """Bring `pages`, in chain order and pinned by the caller, into DRAM as far as there is room and time.

        What arrives after `deadline` is kept too. The outcome is in the pages.
        """
        waits: list[asyncio.Future[None]] = []
        batch: Batch = []
        claimed: list[Page] = []
        try:
            for page in pages:
                under_way = pool.loading.get(page)
                if under_way is None and page.slot is None:
                    under_way = pool.loading[page] = asyncio.get_running_loop().create_future()
                    claimed.append(page)
                    slot: Slot | NoRoom | None = self._room.reserve_nowait(pool, page.slot_bytes)
                    if slot is None:
                        if batch:  # no need to wait with it
                            self._submit(pool, batch)
                            batch = []
                        slot = await self._room.reserve(pool, page.slot_bytes, deadline)
                    if isinstance(slot, NoRoom):
                        break
                    if page.nvme is None:  # reclaimed or lost while room was made
                        self._room.release(pool, slot)
                        break
                    if batch and not _continues(batch, page):
                        self._submit(pool, batch)
                        batch = []
                    batch.append((page, slot, page.nvme))
                    page.nvme.segment.io += 1
                    claimed.remove(page)
                if under_way is not None:
                    waits.append(under_way)
        finally:
            if batch:
                self._submit(pool, batch)
            for page in claimed:
                _finish(pool, page)
        if waits:
            remaining = deadline - asyncio.get_running_loop().time()
            await asyncio.wait(waits, timeout=max(0.0, remaining))

    def _submit(self, pool: Pool, batch: Batch) -> None:
        for page, _, _ in batch:
            pool.index.pin(page)
        self._core.tasks.start("load", self._load_batch(pool, batch))

    async def _load_batch(self, pool: Pool, batch: Batch) -> None:
        first, _, location = batch[0]
        segment = location.segment
        job = jobs.ReadRun(
            self._core.movers.next_id(),
            pool.uid,
            first.node.layout,
            str(segment.path),
            segment.device.direct,
            segment.sequence,
            location.offset,
            [page_ref_of(page, slot) for page, slot, _ in batch],
            [place.checksum for _, _, place in batch],
        )
        good: set[int] = set()
        try:
            (result,) = await self._core.movers.run(job, Priority.READ)
            assert isinstance(result, jobs.Moved)
            good = set(range(len(batch))) - set(result.bad)
            self._count_lost(pool, batch, result.bad)
        except DeviceError as error:
            if error.errno != errno.ENOENT or not segment.device.path.exists():
                self._devices.close(segment.device, str(error))
            else:
                self._count_lost(pool, batch, range(len(batch)))
        except JobFailed as error:
            log("load.failed", pool=pool.uid, error=error)
        for index, (page, slot, _) in enumerate(batch):
            segment.io -= 1
            if index in good and page.attached and page.slot is None:
                pool.index.set_slot(page, slot)
                _count_read(pool, page, direct=segment.device.direct)
            else:
                self._room.release(pool, slot)
            _finish(pool, page)
            pool.index.unpin(page)
        pool.progress.fire()

    def _count_lost(self, pool: Pool, batch: Batch, lost: Sequence[int] | range) -> None:
        """A page whose checksum does not match is a miss from now on, and all below it."""
        for index in lost:
            page, _, location = batch[index]
            pool.counters["pages_lost_nvme"] += 1
            log("page.lost", pool=pool.uid, segment=location.segment.path, offset=location.offset, bytes=page.size)
            if page.nvme == location:
                pool.index.drop_nvme(page)


def _continues(batch: Batch, page: Page) -> bool:
    last, _, location = batch[-1]
    return (
        page.nvme is not None
        and page.nvme.segment is location.segment
        and page.nvme.offset == location.end(last.size)
        and len(batch) < _BATCH_PAGES
        and location.end(last.size) - batch[0][2].offset < _BATCH_BYTES
    )


def _count_read(pool: Pool, page: Page, *, direct: bool) -> None:
    pool.counters["pages_read_nvme"] += 1
    pool.counters["bytes_read_nvme"] += page.size
    if direct:
        pool.counters["bytes_read_nvme_direct"] += page.size


def _finish(pool: Pool, page: Page) -> None:
    done = pool.loading.pop(page, None)
    if done is not None and not done.done():
        done.set_result(None)
