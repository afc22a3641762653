"""Writes pages down in runs of one chain.

What is to be written is queued by chains: a chain whose first part still waits gets the next part behind it, so that
the longer the devices are busy the longer the runs are. Runs go out several at once; nothing orders them but flushes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from kvtier_client.protocol.messages import Reach

from ..aio import Signal, let_others
from ..errors import FormatRefused, JobFailed, MoverDied
from ..log import log
from ..ports import PoolView
from ..refs import REF_BYTES, Ref, decode_refs, hash_in, sizes_in
from . import jobs
from .books import Books
from .devices import Device, Priority
from .keeper import Keeper
from .placement import Segment, SegmentState, Spot, Want
from .segments import LAYOUT_BYTES, MAX_RUN_PAGES, RunSizes, run_header_bytes

_RUNS_AT_ONCE: Final = 4
"""For each device."""
_BUSY_S: Final = 1.0
"""Whoever waits for runs to end looks again after so long: a device may have been given up."""

Written = Segment | None
"""Where a page was written; None: it was not."""


class _Group:
    """Pages of one chain that wait, in order."""

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: deque[int] = deque()


class _PoolQueue:
    """What one pool has to write."""

    def __init__(self) -> None:
        self.groups: OrderedDict[int, _Group] = OrderedDict()
        """By identity, in the order in which they came."""
        self.by_tail: dict[int, _Group] = {}
        """By the page that they end with."""
        self.pages: set[int] = set()
        """That wait or are being written; such pages are pinned, so that their numbers hold."""
        self.waiters: dict[int, asyncio.Future[Written]] = {}
        """By page of these, for what somebody waits for."""
        self.working = False

    def written(self, page: int) -> asyncio.Future[Written]:
        """What becomes of one of `pages`."""
        if page not in self.waiters:
            self.waiters[page] = asyncio.get_running_loop().create_future()
        return self.waiters[page]


class Writer:
    """Writes. Event loop thread only."""

    def __init__(self, books: Books, keeper: Keeper, gave_up: Callable[[str, int], None]) -> None:
        """`gave_up` is called with a pool and how many of its pages no device took."""
        self._books, self._keeper, self._gave_up = books, keeper, gave_up
        self._queues: dict[str, _PoolQueue] = {}
        self._runs: Counter[Device] = Counter()
        """That are on their way to each device."""
        self._ended = Signal()
        """Fires as a run ends."""

    def has_place(self, pool: PoolView) -> bool:
        """Whether the pool's pages can be written at all now."""
        return any(
            it.health.writable and self._keeper.quota_units(pool, it.unit_bytes) > 0 for it in self._books.devices
        )

    def writing(self, pool: PoolView) -> bool:
        """Whether any page of the pool waits or is being written."""
        queue = self._queues.get(pool.uid)
        return queue is not None and bool(queue.pages)

    def enqueue(self, pool: PoolView, pages: Sequence[int]) -> int:
        """Write `pages`, chains in order, but for those that are on nvme or on their way already; how many are new."""
        if not self.has_place(pool):
            return 0
        return self._take(pool, pool.index.dirty(pages))

    def enqueue_marked(self, pool: PoolView, pages: Sequence[int]) -> int:
        """As `enqueue`, of pages that the index has marked as being written."""
        return self._take(pool, pages)

    def _take(self, pool: PoolView, pages: Sequence[int]) -> int:
        if not pages:
            return 0
        queue = self._queues.setdefault(pool.uid, _PoolQueue())
        queue.pages.update(pages)
        for stretch in pool.index.stretches(pages):
            group = self._group_for(pool, queue, stretch[0])
            if group.pages:
                queue.by_tail.pop(group.pages[-1], None)
            group.pages.extend(stretch)
            queue.by_tail[stretch[-1]] = group
        if not queue.working:
            queue.working = True
            self._books.tasks.start("write", self._work(pool, queue))
        return len(pages)

    def _group_for(self, pool: PoolView, queue: _PoolQueue, page: int) -> _Group:
        """The group that ends where the page goes on, or a new one."""
        parent = pool.index.parent_page(page)
        found = queue.by_tail.get(parent) if parent is not None else None
        if found is None:
            found = _Group()
            queue.groups[id(found)] = found
        return found

    async def settle(self, pool: PoolView, pages: Sequence[int], reach: Reach, deadline: float) -> Reach:
        """Write `pages`, and say how far all of them got: `reach`, or what was reached by `deadline`."""
        self.enqueue(pool, pages)
        queue = self._queues.get(pool.uid)
        segments: dict[int, Segment] = {}
        waits: list[asyncio.Future[Written]] = []
        for page in pages:
            if queue is not None and page in queue.pages:
                waits.append(queue.written(page))
                continue
            place = pool.index.place_of(page)
            segment = self._books.segments.get(place[0]) if place is not None else None
            if segment is None:
                return Reach.DRAM
            segments[segment.number] = segment
        loop = asyncio.get_running_loop()
        if waits:
            _, late = await asyncio.wait(waits, timeout=max(0.0, deadline - loop.time()))
            if late:
                return Reach.DRAM
            for wait in waits:
                written = wait.result()
                if written is None:
                    return Reach.DRAM
                segments[written.number] = written
        if reach is not Reach.FLUSHED:
            return Reach.SEALED
        flushing = self._books.tasks.start("flush", self._keeper.flush(list(segments.values())))
        done, _ = await asyncio.wait((flushing,), timeout=max(0.0, deadline - loop.time()))
        flushed = bool(done) and flushing.result()
        return Reach.FLUSHED if flushed else Reach.SEALED

    async def flush(self, pool: PoolView, deadline: float) -> bool:
        """Whether all that waits now was written, and all that was written flushed, by `deadline`."""
        queue = self._queues.get(pool.uid)
        loop = asyncio.get_running_loop()
        waits = [queue.written(page) for page in queue.pages] if queue is not None else []
        if waits:
            _, late = await asyncio.wait(waits, timeout=max(0.0, deadline - loop.time()))
            if late:
                return False
        flushing = self._books.tasks.start(
            "flush", self._keeper.flush(list(self._books.space(pool.uid).segments.values()))
        )
        done, _ = await asyncio.wait((flushing,), timeout=max(0.0, deadline - loop.time()))
        return bool(done) and flushing.result()

    async def _work(self, pool: PoolView, queue: _PoolQueue) -> None:
        try:
            while queue.groups:
                while self._is_busy():
                    await self._ended.wait(asyncio.get_running_loop().time() + _BUSY_S)
                await self._start_run(pool, queue)
                await let_others()
        finally:
            queue.working = False

    def _is_busy(self) -> bool:
        """Whether the devices that take runs have enough to do; what one that hangs still has does not count."""
        able = [it for it in self._books.devices if it.health.writable]
        return sum(self._runs[it] for it in able) >= _RUNS_AT_ONCE * len(able) > 0

    async def _start_run(self, pool: PoolView, queue: _PoolQueue) -> None:
        """Place and begin the first group's next run, if it can be written."""
        key, group = next(iter(queue.groups.items()))
        pages = list(islice(group.pages, MAX_RUN_PAGES))
        refs = pool.index.refs(pages)
        if not self._is_worth_writing(pool, queue, pages[0]):
            self._take_off(queue, key, group, 1)
            self._give_up(pool, queue, pages[:1])
            return
        want = Want(RunSizes(sizes_in(refs)), refs[:LAYOUT_BYTES], _parent_places(pool, pages, refs))
        spot = await self.find_spot(pool, want)
        if key not in queue.groups:  # the pool was purged meanwhile
            return
        if spot is None:
            taken = self._take_off(queue, key, group, len(group.pages))
            self._give_up(pool, queue, taken)
            self._gave_up(pool.uid, len(taken))
            return
        if pool.index.detached(pages[: spot.pages]):
            self._drop_detached(pool, queue, key, group)
            return
        taken = self._take_off(queue, key, group, spot.pages)
        serial = self._books.next_serial()
        places = want.sizes.places(spot.offset, spot.pages)
        run_refs = refs[: spot.pages * REF_BYTES]
        last = _last_block(run_refs)
        self._books.space(pool.uid).place(spot, want, self._keeper.budget(pool), places[-len(last) :])
        spot.segment.io += 1
        job = jobs.WriteRun(
            spot.segment.device.next_id(),
            pool.uid,
            spot.segment.unit,
            spot.segment.id.sequence,
            spot.segment.id.nonce,
            spot.offset,
            serial,
            pool.index.refs(taken),
        )
        self._note_growth(pool, run_refs, last)
        self._runs[spot.segment.device] += 1
        self._books.tasks.start("run", self._write(pool, queue, spot, job, taken, places))

    def _note_growth(self, pool: PoolView, refs: bytes, last: Sequence[Ref]) -> None:
        """For the cleaner: chains that grow. `last`: the run's last block."""
        (first,) = decode_refs(refs[:REF_BYTES])
        keys = frozenset((ref.group, ref.shard) for ref in last)
        self._books.space(pool.uid).grew(first.layout, first.parent, last[0].hash, keys, len(refs) // REF_BYTES)

    def _drop_detached(self, pool: PoolView, queue: _PoolQueue, key: int, group: _Group) -> None:
        """Take pages that were deleted out of the queue: a run of now counts as newer than their deletion."""
        detached = pool.index.detached(list(group.pages))
        queue.by_tail.pop(group.pages[-1], None)
        gone = set(detached)
        group.pages = deque(page for page in group.pages if page not in gone)
        if group.pages:
            queue.by_tail[group.pages[-1]] = group
        else:
            del queue.groups[key]
        self._give_up(pool, queue, detached)

    def _take_off(self, queue: _PoolQueue, key: int, group: _Group, count: int) -> list[int]:
        """The group's first pages, out of the queue; a group that is used up goes."""
        taken = [group.pages.popleft() for _ in range(count)]
        if not group.pages:
            del queue.groups[key]
            queue.by_tail.pop(taken[-1], None)
        else:
            queue.groups.move_to_end(key)
        return taken

    async def find_whole(self, pool: PoolView, want: Want) -> Spot | None:
        """Where the wanted pages lie together, in what is free now; None: nowhere."""
        space = self._books.space(pool.uid)
        ample = self._keeper.budget(pool)
        ample = ample._replace(free_bytes=max(ample.free_bytes, ample.quota_bytes))
        spot = space.find_behind(want)
        if spot is not None:
            return spot
        devices = [it for it in self._books.devices if it.health.writable]
        device = space.device_for(want, devices)
        if device is None:
            return None
        for _ in range(2):
            spot = space.on_top(want, device, ample, striped=len(devices) > 1)
            if spot is not None or not self._keeper.fits(pool, device):
                return spot
            if await self._keeper.make_segment(pool, device) is None:
                return None
        return None

    async def find_spot(self, pool: PoolView, want: Want, *, may_make: bool = True) -> Spot | None:
        """Where the run goes; None: nowhere now. `may_make`: a segment, if there has to be a new one."""
        space = self._books.space(pool.uid)
        budget = self._keeper.budget(pool)
        spot = space.find_reserved(want, budget)
        if spot is not None and spot.segment.device.health.writable:
            return spot
        devices = [it for it in self._books.devices if it.health.writable]
        striped = len(devices) > 1
        first = space.device_for(want, devices)
        if first is None:
            return None
        order = [first, *(it for it in devices if it is not first)]
        for device in order:
            spot = space.on_top(want, device, budget, striped=striped)
            if spot is not None:
                return spot
            if not self._keeper.fits(pool, device) and space.reserved_bytes:
                space.lapse_oldest(
                    max(space.reserved_bytes // 4, want.sizes.payload_bytes(0, min(len(want.sizes), MAX_RUN_PAGES)))
                )
                spot = space.find_reserved(want, budget._replace(free_bytes=0))
                if spot is not None:
                    return spot
            make = self._keeper.make_segment if may_make else self._keeper.make_spare
            if await make(pool, device) is not None:
                spot = space.on_top(want, device, budget, striped=striped)
                if spot is not None:
                    return spot
        nothing_ahead = budget._replace(free_bytes=0)
        tops = (space.on_top(want, device, nothing_ahead, striped=striped) for device in order)
        return next((spot for spot in tops if spot is not None), None)

    async def _write(
        self,
        pool: PoolView,
        queue: _PoolQueue,
        spot: Spot,
        job: jobs.WriteRun,
        pages: Sequence[int],
        places: Sequence[int],
    ) -> None:
        """Have the run written; pages that did not get there, for no fault of a device, are queued again."""
        segment = spot.segment
        device = segment.device
        again: list[int] = []
        written: Written = None
        try:
            result = await device.run(job, Priority.WRITE)
            if result.bad:
                log("page.damaged", pool=pool.uid, pages=len(result.bad))
                bad = set(result.bad)
                again = [page for index, page in enumerate(pages) if index < min(bad)]
            else:
                written = self._written(pool, spot, job.refs, pages, places)
        except MoverDied:
            again = list(pages)
        except (JobFailed, FormatRefused) as error:
            log("write.failed", pool=pool.uid, device=device.name, error=error)
            self._gave_up(pool.uid, len(pages))
        finally:
            segment.io -= 1
            self._runs[device] -= 1
            self._ended.fire()
            self._finish(pool, queue, pages, written)
        if again:
            self.enqueue(pool, again)

    def _written(self, pool: PoolView, spot: Spot, refs: bytes, pages: Sequence[int], places: Sequence[int]) -> Written:
        segment = spot.segment
        if segment.state is SegmentState.GONE:
            return None
        segment.device.wrote(spot.run_bytes)
        segment.mark = segment.device.written_mark
        segment.runs.append((spot.offset, run_header_bytes(len(pages))))
        pool.index.written(pages, segment.number, places)
        pool.counters["pages_written_nvme"] += len(pages)
        pool.counters["bytes_written_nvme"] += sum(sizes_in(refs))
        return segment

    def _give_up(self, pool: PoolView, queue: _PoolQueue, pages: Sequence[int]) -> None:
        self._finish(pool, queue, pages, None)

    def _finish(self, pool: PoolView, queue: _PoolQueue, pages: Sequence[int], written: Written) -> None:
        if written is None:
            pool.index.not_written(pages)
        queue.pages.difference_update(pages)
        if queue.waiters:
            for page in queue.waiters.keys() & set(pages):
                queue.waiters.pop(page).set_result(written)
        pool.progress.fire()

    def _is_worth_writing(self, pool: PoolView, queue: _PoolQueue, page: int) -> bool:
        """Whether recovery would find the page: not if its parent is neither there nor under way."""
        parent = pool.index.parent_page(page)
        return parent is None or parent in queue.pages or pool.index.place_of(parent) is not None

    def drop_pool(self, pool: PoolView) -> None:
        """Give up what waits; what is being written is not waited for."""
        queue = self._queues.get(pool.uid)
        if queue is None:
            return
        for key, group in list(queue.groups.items()):
            self._give_up(pool, queue, self._take_off(queue, key, group, len(group.pages)))


def _last_block(refs: bytes) -> list[Ref]:
    """The references of the last block's pages, from the last one on."""
    found: list[Ref] = []
    for start in range(len(refs) - REF_BYTES, -1, -REF_BYTES):
        (ref,) = decode_refs(refs[start : start + REF_BYTES])
        if found and ref.hash != found[0].hash:
            break
        found.append(ref)
    return found


def _parent_places(pool: PoolView, pages: Sequence[int], refs: bytes) -> list[tuple[int, int]]:
    """Where the pages lie that the run's first block hangs on."""
    places = []
    for index, page in enumerate(pages):
        if hash_in(refs, index) != hash_in(refs, 0):
            break
        parent = pool.index.parent_page(page)
        place = pool.index.place_of(parent) if parent is not None else None
        if place is not None:
            places.append((place[0], place[1]))
    return places
