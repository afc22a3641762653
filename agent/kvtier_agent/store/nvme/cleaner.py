"""The cleaner: merges the pieces of chains that grew, and frees units, moving what the policy would keep.

Pages go from device to device through a bounce buffer, checked on both ways, and never through DRAM slots. It writes
half as much as clients do at most.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..aio import let_others
from ..arena_format import PAGE, round_up
from ..errors import FormatRefused, JobFailed
from ..log import log
from ..ports import PoolView
from ..refs import REF_BYTES, Ref, decode_refs
from . import jobs
from .books import Books
from .cleaning import KEEP_SHARE, decide_keep, decide_merge, is_fragmented
from .devices import Device, Priority
from .keeper import Keeper
from .placement import Grown, Segment, SegmentState, Spot, Want
from .segments import RunSizes, run_header_bytes
from .writer import Writer

WRITE_SHARE: Final = 0.45
"""Payload that the cleaner writes, of what clients write: with headers and summaries it stays below half."""
_SPARE_UNITS: Final = 2
_MERGES_AT_ONCE: Final = 8
"""Chains in one step."""
_RETRIES: Final = 2
_FULL_SHARE: Final = 0.88
"""Of a quota: with more payload than this, pages have to go for others to come."""
_COMPACT_SHARE: Final = 0.75
"""Of a unit: one that is fuller is not moved for the rest."""


class Cleaner:
    """Cleans. Event loop thread only; one move at a time."""

    def __init__(self, books: Books, keeper: Keeper, writer: Writer) -> None:
        self._books, self._keeper, self._writer = books, keeper, writer
        self._written: Counter[str] = Counter()
        """By pool, payload bytes that were moved."""
        self._found: dict[str, int] = {}
        """By pool, what clients had written before the start, as far as it is there: every start leaves units behind
        that are not full."""
        self._seen: Counter[str] = Counter()
        """By pool, what clients had written at the last step."""
        self._moving = asyncio.Lock()
        self._pinning: Counter[str] = Counter()
        """By pool, how many moves keep their pages."""
        keeper.compact = self.compact
        keeper.rescue = self.rescue

    def forget(self, pool: PoolView) -> None:
        """The pool is purged."""
        self._books.space(pool.uid).grown.clear()
        self._written.pop(pool.uid, None)
        self._found.pop(pool.uid, None)

    def is_moving(self, pool: PoolView) -> bool:
        """Whether pages of the pool are being moved; until then they leave neither nvme nor DRAM."""
        return self._pinning[pool.uid] > 0

    def budget_bytes(self, pool: PoolView) -> int:
        """What may be moved now."""
        found = self._found.setdefault(pool.uid, pool.index.nvme_bytes)
        return int(WRITE_SHARE * (found + pool.counters["bytes_written_nvme"])) - self._written[pool.uid]

    async def step(self, pool: PoolView) -> None:
        """Do a part of what there is to do."""
        if await self._free_ahead(pool):
            return
        if not self._writer.writing(pool):
            await self._merge(pool)

    async def _merge(self, pool: PoolView) -> None:
        """Merge chains that grew and now rest; those that lie well are looked at no more."""
        grown = self._books.space(pool.uid).grown
        for key in [key for key, it in grown.items() if it.runs > 1][:_MERGES_AT_ONCE]:
            budget = self.budget_bytes(pool)
            if budget <= 0:
                return
            chain = grown[key]
            runs, chain_bytes = pool.index.runs(chain.layout, chain.last)
            if not is_fragmented(runs, chain_bytes) or await self._merge_chain(pool, chain, budget):
                grown.pop(key, None)

    async def _merge_chain(self, pool: PoolView, chain: Grown, budget: int) -> bool:
        """Whether the chain need not be looked at again before it grows."""
        pages = pool.index.chain_of(chain.layout, chain.last, sorted(chain.keys))
        ranges = decide_merge(pool.index.places_of(pages), budget)
        for start, stop in ranges:
            if not await self._move_range(pool, chain, start, stop):
                return True
        return bool(ranges)

    async def _move_range(self, pool: PoolView, chain: Grown, start: int, stop: int) -> bool:
        """Lay the chain's pages start..stop down together. False: they could not be moved."""
        parents: list[tuple[int, int]] = []
        while start < stop:
            pages = pool.index.chain_of(chain.layout, chain.last, sorted(chain.keys))[start:stop]
            moved = await self._move(pool, pages, parents)
            if moved is None:
                return False
            count, tails = moved
            parents = tails
            start += count
        return True

    async def _free_ahead(self, pool: PoolView) -> bool:
        """Keep some units free for what clients write next, while they write; whether one was freed."""
        written = pool.counters["bytes_written_nvme"]
        idle = written == self._seen[pool.uid]
        self._seen[pool.uid] = written
        device = None if idle else self._short_of_units(pool)
        if device is None:
            return False
        if self._emptiest(pool, device) is not None:
            return await self.compact(pool, device, may_make=True)
        victim = self._keeper.victim(pool, device) or self._keeper.victim(pool)
        if victim is None:
            return False
        await self._rescue(pool, victim, KEEP_SHARE, may_make=True)
        return self._keeper.is_idle(pool, victim) and await self._keeper.free(pool, victim)

    async def rescue(self, pool: PoolView, victim: Segment) -> None:
        """Move what is worth most out of a unit that is about to be freed; only the spared unit is taken for it."""
        await self._rescue(pool, victim, KEEP_SHARE, may_make=False)

    async def compact(self, pool: PoolView, device: Device, *, may_make: bool = False) -> bool:
        """Free a unit whose pages fit elsewhere. False: there is none."""
        victim = self._emptiest(pool, device)
        if victim is None:
            return False
        await self._rescue(pool, victim, math.inf, may_make=may_make)
        if pool.index.segment_live(victim.number)[0]:
            return False
        return self._keeper.is_idle(pool, victim) and await self._keeper.free(pool, victim)

    def _emptiest(self, pool: PoolView, device: Device) -> Segment | None:
        """The sealed unit with the fewest bytes, if these may be moved; None: the pool is full of what it keeps."""
        quota = self._keeper.quota_units(pool, device.unit_bytes) * device.unit_bytes
        if pool.index.nvme_bytes > _FULL_SHARE * quota:
            return None
        live = {
            it: pool.index.segment_live(it.number)[1]
            for it in self._books.space(pool.uid).segments.values()
            if self._keeper.is_idle(pool, it) and it.device is device
        }
        emptiest = min(live, key=lambda it: live[it], default=None)
        if emptiest is None or live[emptiest] > min(self.budget_bytes(pool), int(_COMPACT_SHARE * device.unit_bytes)):
            return None
        return emptiest

    def _short_of_units(self, pool: PoolView) -> Device | None:
        """A device on which the pool could not make its next segments."""
        books = self._books
        for device in books.devices:
            if not device.health.writable or not device.unit_bytes:
                continue
            units = self._keeper.quota_units(pool, device.unit_bytes)
            spare = min(_SPARE_UNITS, units // 8)
            left = min(
                units - books.used_bytes(pool.uid) // device.unit_bytes,
                (books.capacity_bytes - books.total_bytes) // device.unit_bytes,
                sum(it.free_units for it in books.devices),
            )
            if left < spare:
                return device
        return None

    async def _rescue(self, pool: PoolView, victim: Segment, share: float, *, may_make: bool) -> None:
        """Move up to `share` of a unit that is about to be freed: what is worth more than the pool's mean, or all."""
        pages = pool.index.segment_pages(victim.number)
        limit = min(int(min(share, 1.0) * victim.unit_bytes), self.budget_bytes(pool))
        if not pages or limit <= 0:
            return
        mean = -math.inf if share == math.inf else self._mean_worth(pool)
        sizes = [place[2] if place is not None else 0 for place in pool.index.places_of(pages)]
        kept = decide_keep(sizes, pool.index.worth(pages), mean, limit)
        stretches = pool.index.stretches([pages[index] for index in kept])
        await let_others()
        for names in stretches:
            for _ in range(_RETRIES):
                again = pool.index.in_segment(victim.number, names)
                if not again:
                    break
                if await self._move(pool, again, [], may_make=may_make) is None:
                    return

    def _mean_worth(self, pool: PoolView) -> float:
        live = [pool.index.segment_live(it.number) for it in self._books.space(pool.uid).segments.values()]
        pages = sum(it[0] for it in live)
        return sum(it[2] for it in live) / pages if pages else 0.0

    async def _move(
        self, pool: PoolView, pages: Sequence[int], parents: Sequence[tuple[int, int]], *, may_make: bool | None = None
    ) -> tuple[int, list[tuple[int, int]]] | None:
        """Lay the first of `pages` (one chain, in order) down as one run; how many, and its end. None: not now.

        `may_make`: whether a segment may be made, or room for one; None: only where all of `pages` can lie together.
        """
        pool.index.pin(pages)  # their numbers have to last
        self._pinning[pool.uid] += 1
        try:
            return await self._move_pinned(pool, pages, parents, may_make)
        finally:
            self._pinning[pool.uid] -= 1
            pool.index.unpin(pages)
            pool.progress.fire()

    async def _move_pinned(
        self, pool: PoolView, pages: Sequence[int], parents: Sequence[tuple[int, int]], may_make: bool | None
    ) -> tuple[int, list[tuple[int, int]]] | None:
        places_before = pool.index.places_of(pages)
        refs = decode_refs(pool.index.refs(pages))
        want = Want(RunSizes([ref.size for ref in refs]), refs[0].layout, parents)
        if may_make is None:
            spot = await self._writer.find_whole(pool, want)
        else:  # not under `_moving`: to make a segment, another may have to be compacted first
            spot = await self._writer.find_spot(pool, want, may_make=may_make)
        if spot is None:
            return None
        if None in places_before or pool.index.places_of(pages) != places_before:
            return None
        current = pool.index.refs(pages)
        sources = [self._books.segments.get(ref.segment) for ref in refs[: spot.pages]]
        if any(it is None or it.state is SegmentState.GONE for it in sources):
            return None
        serial = self._books.next_serial()
        places = want.sizes.places(spot.offset, spot.pages)
        tails = [at for at, ref in zip(places, refs, strict=False) if ref.hash == refs[spot.pages - 1].hash]
        self._books.space(pool.uid).place(spot, want, self._keeper.budget(pool), tails)
        segments = {it for it in sources if it is not None} | {spot.segment}
        for it in segments:
            it.io += 1
        try:
            async with self._moving:
                if not await self._carry(pool, spot, refs[: spot.pages], current[: spot.pages * REF_BYTES], serial):
                    return None
        finally:
            for it in segments:
                it.io -= 1
        self._moved(pool, spot, pages[: spot.pages], refs, places)
        for it in segments - {spot.segment}:
            it.copies = it.copies | {spot.segment.device: spot.segment.mark}
        return spot.pages, [(spot.segment.number, at) for at in tails]

    async def _carry(self, pool: PoolView, spot: Spot, refs: Sequence[Ref], packed: bytes, serial: int) -> bool:
        """Read and write; whether all of it arrived."""
        try:
            bounce = 0
            for device, start, stop in self._by_device(refs):
                places = [self._at(ref) for ref in refs[start:stop]]
                part = packed[start * REF_BYTES : stop * REF_BYTES]
                lifted = await device.run(jobs.Lift(device.next_id(), bounce, places, part), Priority.CLEAN)
                if lifted.bad or lifted.failed:
                    log("page.damaged", pool=pool.uid, device=device.name, pages=len(lifted.bad))
                    return False
                bounce += sum(round_up(ref.size, PAGE) for ref in refs[start:stop])
            target = spot.segment.device
            id_ = spot.segment.id
            job = jobs.Lay(target.next_id(), 0, pool.uid, spot.segment.unit, *id_[1:], spot.offset, serial, packed)
            laid = await target.run(job, Priority.CLEAN)
        except (JobFailed, FormatRefused) as error:
            log("move.failed", pool=pool.uid, error=error)
            return False
        return not laid.bad

    def _moved(
        self, pool: PoolView, spot: Spot, pages: Sequence[int], refs: Sequence[Ref], places: Sequence[int]
    ) -> None:
        segment = spot.segment
        segment.device.wrote(spot.run_bytes)
        segment.mark = segment.device.written_mark
        segment.runs.append((spot.offset, run_header_bytes(spot.pages)))
        size = 0
        for page, ref, place in zip(pages, refs, places, strict=False):
            pool.index.moved(page, ref.segment, ref.offset, segment.number, place)
            size += ref.size
        self._written[pool.uid] += size
        pool.counters["bytes_cleaned_nvme"] += size

    def _by_device(self, refs: Sequence[Ref]) -> list[tuple[Device, int, int]]:
        """Stretches of pages that lie on one device."""
        stretches: list[tuple[Device, int, int]] = []
        for index, ref in enumerate(refs):
            device = self._books.segments[ref.segment].device
            if stretches and stretches[-1][0] is device:
                stretches[-1] = device, stretches[-1][1], index + 1
            else:
                stretches.append((device, index, index + 1))
        return stretches

    def _at(self, ref: Ref) -> int:
        segment = self._books.segments[ref.segment]
        cut = segment.device.superblock
        assert cut is not None
        return cut.unit_at(segment.unit) + ref.offset
