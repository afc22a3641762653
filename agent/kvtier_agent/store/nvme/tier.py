"""The NVMe tier of one store: puts its parts together, and applies the pools' policies. Implements `ports.NvmeTier`."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvtier_client.protocol.messages import Reach, Report

from kvtier_agent.config import NvmeConfig
from kvtier_agent.control import DeviceSnapshot

from ..aio import Tasks, let_others
from ..errors import DeviceError
from ..handed import Handed
from ..log import log
from ..ports import PoolView, SlotRoom
from .books import Books
from .cleaner import Cleaner
from .devices import Device, make_bounce
from .health import Limits
from .journal import Journal
from .keeper import Keeper
from .loader import Loader
from .offers import Offers
from .placement import Segment, SegmentState
from .records import Expired, Purged, Record, deleted_records
from .recovery import Recovery
from .writer import Writer

_RAW: Final = "/dev/"
_TICK_S: Final = 0.1
_UPKEEP_S: Final = 0.5
_LIST_S: Final = 60.0
"""Between tries to list a device that opens, and cannot be listed, at most."""
_WRITE_BACK_PAGES: Final = 500
_PURGE_POLL_S: Final = 0.02
_CLOSE_S: Final = 15.0


class Nvme:
    """All devices, for all pools. Event loop thread only."""

    def __init__(
        self,
        config: NvmeConfig,
        arena: Path,
        room: SlotRoom,
        limits: Limits | None = None,
        handed: Handed | None = None,
        mean_page_bytes: int = 0,
    ) -> None:
        """`handed`: brings the devices below /dev, in a cluster; None: they are opened here like folders."""
        share = int(config.capacity) // len(config.devices)
        self._bounce_fd = make_bounce()
        devices = [
            Device(
                it,
                share,
                arena,
                self._bounce_fd,
                limits or Limits(),
                handed if it.path.startswith(_RAW) else None,
            )
            for it in config.devices
        ]
        self._books = Books(int(config.capacity), devices, mean_page_bytes)
        self._journal = Journal(devices, self._books.oldest_serials, self._books.tasks)
        self._keeper = Keeper(self._books)
        self._owing: Counter[str] = Counter()
        """By pool, about how many pages were not written that should have been."""
        self._unlooked: set[str] = set()
        """Pools that were just recovered: what of their DRAM is not on nvme was owed by the store before."""
        self._writer = Writer(self._books, self._keeper, self._owe)
        self._loader = Loader(self._books, room)
        self._recovery = Recovery(self._books, self._journal, self._keeper)
        self._cleaner = Cleaner(self._books, self._keeper, self._writer)
        self._offers = Offers(self._books)
        self._pools: dict[str, PoolView] = {}
        self._upkeep = Tasks()
        self._closing = False
        self._doomed: dict[Segment, PoolView] = {}
        """Segments of purged pools on devices that took no writes then."""

    async def open(self) -> set[str]:
        """Start the devices; the pools that have something on them."""
        for device in self._books.devices:
            device.start()
        found = await self._recovery.list_devices()
        for device in self._books.devices:
            if not self._recovery.is_listed(device):
                self._upkeep.start("late device", self._list_late(device))
        self._upkeep.start("devices", self._tick())
        self._upkeep.start("nvme upkeep", self._keep_up())
        return found

    async def stage(self, pool: PoolView) -> None:
        """Give the pool's index all that lies on nvme."""
        self._unlooked.add(pool.uid)
        await self._recovery.stage(pool)
        self._pools[pool.uid] = pool  # upkeep begins, which would take what is not staged yet for what comes late

    async def close(self) -> None:
        """Seal what is open, flush, end the movers."""
        self._closing = True
        await self._upkeep.cancel()
        for segment in list(self._books.segments.values()):
            self._keeper.seal_later(segment)
        sealing = [
            self._books.tasks.start("seal", self._keeper.seal(it))
            for it in self._books.segments.values()
            if it.state is SegmentState.SEALED and it.staged and not it.sealed_on_media
        ]
        if sealing:
            await asyncio.wait(sealing, timeout=_CLOSE_S)
        flushing: list[asyncio.Future[bool]] = [
            asyncio.ensure_future(it.flush(it.written_mark)) for it in self._books.devices if it.health.writable
        ]
        if flushing:
            await asyncio.wait(flushing, timeout=_CLOSE_S)
        for flush in flushing:
            flush.cancel()
        await self._books.tasks.cancel()
        await asyncio.gather(*(it.close() for it in self._books.devices))
        os.close(self._bounce_fd)

    def has_place(self, pool: PoolView) -> bool:
        """Whether pages of the pool are written to nvme at all."""
        return not self._closing and self._writer.has_place(pool)

    def stored(self, pool: PoolView, pages: Sequence[int], *, grew: bool = False) -> None:
        """A put committed the end of this chain: write what the pool's policy says."""
        self._pools[pool.uid] = pool
        grant = pool.grant
        if grant is None or grant.write == "back":
            return
        if grant.admission == "reused" and not grew:
            return
        self._write(pool, pages)

    async def settle(self, pool: PoolView, pages: Sequence[int], reach: Reach, deadline: float) -> Reach:
        """Write `pages` whatever the policy, and say how far all of them got."""
        self._pools[pool.uid] = pool
        return await self._writer.settle(pool, pages, reach, deadline)

    def admits_by_use(self, pool: PoolView) -> bool:
        """Whether pages are written when a get hits them."""
        grant = pool.grant
        return grant is not None and grant.write != "back" and grant.admission == "reused"

    def used(self, pool: PoolView, pages: Sequence[int]) -> None:
        """A get hit these pages."""
        self._write(pool, pages)

    def writing(self, pool: PoolView) -> bool:
        """Whether pages of the pool are on their way."""
        return self._writer.writing(pool) or self._cleaner.is_moving(pool)

    def relieve(self, pool: PoolView, slot_bytes: int) -> None:
        """Room runs short: write back what will be evicted next."""
        if self._writes_back(pool):
            self._writer.enqueue_marked(pool, pool.index.next_dirty(slot_bytes, _WRITE_BACK_PAGES))

    async def load(self, pool: PoolView, pages: Sequence[int], deadline: float) -> None:
        """Bring `pages` into DRAM."""
        await self._loader.load(pool, pages, deadline)

    async def deleted(self, pool: PoolView, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Make it durable that these blocks, as written so far, are gone. Raises DeviceError."""
        if self._may_have_pages(pool):
            await self._journal.append(deleted_records(pool.uid, layout, hashes, self._books.last_serial))

    async def expired(self, pool: PoolView, before: int) -> None:
        """As `deleted`, for all that was stored before this time."""
        if self._may_have_pages(pool):
            await self._append_for_all([Expired(pool.uid, before, self._books.last_serial)])

    def _may_have_pages(self, pool: PoolView) -> bool:
        """Whether something of the pool lies on a device, as far as one knows before all were read."""
        return bool(self._books.space(pool.uid).segments) or not self._journal.is_whole

    async def _append_for_all(self, records: Sequence[Record]) -> None:
        """As the journal's `append`; a device that is missing gets it once it is there. Raises DeviceError."""
        try:
            await self._journal.append(records)
        except DeviceError:
            if self._journal.is_whole:
                raise

    async def purge(self, pool: PoolView) -> None:
        """Make it durable that all the pool has is gone, and free its units once their I/O ends. Raises DeviceError."""
        self._pools.pop(pool.uid, None)
        while pool.index.linking:  # what joins late is linked to the end
            await asyncio.sleep(_PURGE_POLL_S)
        self._recovery.forget(pool)
        del self._owing[pool.uid]
        self._unlooked.discard(pool.uid)
        self._writer.drop_pool(pool)
        self._cleaner.forget(pool)
        self._loader.forget(pool)
        self._offers.forget(pool.uid)
        space = self._books.space(pool.uid)
        if not space.segments.values() - self._doomed.keys():
            if not self._journal.is_whole and not self._journal.has_purged(pool.uid):
                await self._append_for_all([Purged(pool.uid, self._books.last_serial)])
            return
        await self._journal.append([Purged(pool.uid, self._books.last_serial)])
        for segment in list(space.segments.values()):
            space.forget(segment)
            segment.copies = {}
            if segment.state is not SegmentState.GONE:
                segment.state = SegmentState.SEALED
        while left := [it for it in space.segments.values() if it.device.health.writable]:
            for segment in left:
                if segment.io == 0 and segment.state is SegmentState.SEALED:
                    await self._keeper.free(pool, segment)
            await asyncio.sleep(_PURGE_POLL_S)
        self._doomed |= dict.fromkeys(space.segments.values(), pool)

    async def flush(self, pool: PoolView, deadline: float) -> bool:
        """Whether all that is to be written of the pool lies flushed on nvme by `deadline`."""
        self._write_back(pool, _WRITE_BACK_PAGES * 100)
        return await self._writer.flush(pool, deadline)

    def offered(self, pool: PoolView, layout: bytes, whole: int, in_dram: int) -> int:
        """Of `whole` leading blocks, how many pay to restore."""
        return self._offers.offered(pool, layout, whole, in_dram, time.monotonic())

    def report(self, pool: PoolView, report: Report) -> None:
        """An engine's prefill speed."""
        self._offers.report(pool.uid, report)

    def forget_chunk(self, pool_uid: str, chunk: int) -> None:
        """The chunk is gone."""
        for device in self._books.devices:
            device.forget_chunk(pool_uid, chunk)

    def used_bytes(self, pool_uid: str) -> int:
        """Of units that the pool has."""
        return self._books.used_bytes(pool_uid)

    def gauges(self, pool: PoolView) -> dict[str, float]:
        """How the pool's chains were read lately, and what a restore must have at least to pay."""
        breakeven = self._offers.breakeven_blocks(pool.uid, time.monotonic())
        known = {"breakeven_blocks": breakeven} if breakeven is not None else {}
        return self._loader.gauges(pool) | known

    def found(self) -> dict[str, int]:
        """Segments that were read back since the start, by how."""
        return dict(self._recovery.found)

    def waits_for_start(self) -> bool:
        """Whether something came too late to be read in, and a start would find all devices, each with all records."""
        return self._recovery.waits_for_start()

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """Each device, in the configuration's order."""
        return tuple(it.snapshot(len(it.segments) * it.unit_bytes) for it in self._books.devices)

    def _write(self, pool: PoolView, pages: Sequence[int]) -> None:
        if self._closing or not pages:
            return
        if self._writer.has_place(pool):
            self._writer.enqueue(pool, pages)
        else:
            self._owe(pool.uid, len(pages))

    def _write_back(self, pool: PoolView, limit: int) -> None:
        """Write what lies in DRAM alone, as far as the policy wants it written at all."""
        if not self._writes_back(pool):
            return
        classes = {chunk[1] for chunk in pool.index.chunks()}
        begun = sum(self._writer.enqueue_marked(pool, pool.index.next_dirty(it, limit)) for it in classes)
        self._owing[pool.uid] = max(0, self._owing[pool.uid] - begun) if begun else 0

    def _owe(self, pool_uid: str, pages: int) -> None:
        self._owing[pool_uid] += pages

    def _writes_back(self, pool: PoolView) -> bool:
        """Whether what lies in DRAM alone is to be written, beyond what puts hand over.

        With write-through only what a restart or a device that took no writes left behind: a page whose unit was freed
        had its time on nvme.
        """
        grant = pool.grant
        if grant is None or grant.admission == "reused" or not self.has_place(pool):
            return False
        if pool.uid in self._unlooked:
            self._unlooked.discard(pool.uid)
            self._owing[pool.uid] += pool.index.dram_pages
        return grant.write == "back" or self._owing[pool.uid] > 0

    async def _tick(self) -> None:
        while True:
            for device in self._books.devices:
                device.tick(time.monotonic())
                self._journal.make_up(device)
            await asyncio.sleep(_TICK_S)

    async def _keep_up(self) -> None:
        """Trim, write back what is idle, clean."""
        while True:
            await asyncio.sleep(_UPKEEP_S)
            await self._free_doomed()
            for pool in list(self._pools.values()):
                try:
                    await self._keep_up_pool(pool)
                except Exception as error:  # a defect in one pool's upkeep: the others', and the next round, go on
                    log("nvme.upkeep_failed", pool=pool.uid, error=repr(error))

    async def _keep_up_pool(self, pool: PoolView) -> None:
        if pool.grant is None or pool.index.linking:
            return
        if not self._recovery.is_whole(pool):
            await self._stage_late(pool)
        await self._keeper.trim(pool)
        self._keeper.seal_idle(pool)
        if not self._writer.writing(pool):
            self._write_back(pool, _WRITE_BACK_PAGES)
        await self._cleaner.step(pool)

    async def _free_doomed(self) -> None:
        for segment, pool in list(self._doomed.items()):
            if segment.state is SegmentState.SEALED and segment.io == 0 and segment.device.health.writable:
                await self._keeper.free(pool, segment)
            if self._books.segments.get(segment.number) is not segment:  # freed, here or by a purge that was repeated
                del self._doomed[segment]

    async def _list_late(self, device: Device) -> None:
        """Wait for a device that was not listed at the start: what lies on it joins the pools that are served."""
        pause_s = _UPKEEP_S
        while True:
            while not device.health.readable:
                await device.openings.wait(asyncio.get_running_loop().time() + _UPKEEP_S)
            for uid in await self._recovery.list_late(device) - self._pools.keys():
                log("device.unclaimed_pool", device=device.name, pool=uid)
            if self._recovery.is_listed(device):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LIST_S)

    async def _stage_late(self, pool: PoolView) -> None:
        """What could not be read when the pool was recovered joins it, as long as nothing else is in it.

        An index that is in use takes no more from recovery: that waits for a start.
        """
        if pool.index.blocks or pool.index.slots_in_use:
            self._recovery.put_off(pool)
            return
        pool.index.stage_entries(0, b"", b"")  # nobody stores in between
        try:
            await self._recovery.stage(pool)
        finally:
            while not pool.index.link(1000):
                await let_others()
            pool.progress.fire()
