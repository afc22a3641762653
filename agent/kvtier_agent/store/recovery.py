"""Recovery: what chunks and segments hold becomes the index again.

Order: locks, chunks, devices, segments, then each pool's tree is linked from its roots, so that it does
not matter in which order pages were found. A page without its parent is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from . import jobs
from .arena import Chunk, Slot
from .arena_format import PAGE, Geometry, is_pool_uid, parse_chunk_name, round_up
from .chunkmap import GONE_SUFFIX, NEW_SUFFIX, free_chunk_file
from .core import Core
from .devices import Devices
from .errors import JobFailed
from .index import AbsentParent, Index, Page, PageKey, join_key
from .locks import FileLock
from .log import log
from .movers import Priority
from .nvme import Device, Location, Segment, SegmentState

_US_PER_MS: Final = 1000


class Found(NamedTuple):
    """A page that lies in a slot or in a segment."""

    layout: bytes
    hash: bytes
    parent: bytes
    key: PageKey
    size: int
    last_use_ms: int
    slot: Slot | None = None
    nvme: Location | None = None


async def acquire_lock(lock: FileLock, wait_s: float) -> None:
    """Wait for the lock on the event loop. Raises LockHeld, OSError."""
    for pause_s in lock.attempts(wait_s):
        await asyncio.sleep(pause_s)


async def settle_arena(arena: Path, wait_s: float) -> None:
    """Wait, each up to `wait_s`, for the movers of the last store, and remove what it left half made or half gone.

    The caller has the store's lock. Raises LockHeld, OSError.
    """
    movers = arena / "movers"
    movers.mkdir(exist_ok=True)
    for path in sorted(movers.glob("*.lock")):
        mover = FileLock(path)
        await acquire_lock(mover, wait_s)
        mover.release()
    for suffix in (NEW_SUFFIX, GONE_SUFFIX):
        for leftover in arena.glob(f"*/*{suffix}"):
            free_chunk_file(leftover)


def list_chunks(arena: Path) -> list[tuple[str, int]]:
    """Pool and id of every chunk file. Raises OSError."""
    found = []
    for pool in arena.iterdir():
        if is_pool_uid(pool.name) and pool.is_dir():
            ids = (parse_chunk_name(file.name) for file in pool.iterdir())
            found += [(pool.name, id_) for id_ in ids if id_ is not None]
    return sorted(found, key=lambda it: it[1])


def first_number(existing: Iterable[int]) -> int:
    """A number above all that exist and, going by the clock, above all that ever did."""
    return max(max(existing, default=0) + 1, time.time_ns() // 1000)


class Recovery:
    """Reads both tiers back into the books. Runs once, before anything is served."""

    def __init__(self, core: Core, devices: Devices) -> None:
        self._core, self._devices = core, devices
        self._found: defaultdict[str, list[Found]] = defaultdict(list)

    async def run(self, chunks: Sequence[tuple[str, int]]) -> None:
        """Raises FormatRefused for chunks of another format, JobFailed when the arena cannot be read."""
        started = time.monotonic()
        await asyncio.gather(*(self._scan_chunk(*chunk) for chunk in chunks))
        listed = await asyncio.gather(*(self._devices.open(device) for device in self._core.nvme.devices))
        segments = [
            (device, found) for device, files in zip(self._core.nvme.devices, listed, strict=True) for found in files
        ]
        self._core.nvme.start_sequence(first_number(found.sequence for _, found in segments))
        await asyncio.gather(*(self._scan_segment(device, found) for device, found in segments))
        for uid, found in self._found.items():
            pool = self._core.pool(uid)
            orphans = link(pool.index, found, self._core.arena.claim)
            log(
                "pool.recovered",
                pool=uid,
                blocks=pool.index.blocks,
                dram_pages=pool.index.dram_pages,
                nvme_pages=pool.index.nvme_pages,
                orphans=orphans,
            )
        log("store.recovered", chunks=len(chunks), segments=len(segments), took_s=round(time.monotonic() - started, 3))

    async def _scan_chunk(self, pool_uid: str, chunk_id: int) -> None:
        core = self._core
        self._found.setdefault(pool_uid, [])
        parts = await core.movers.run(jobs.ScanChunk(core.movers.next_id(), pool_uid, chunk_id), Priority.SCAN)
        scans = [part for part in parts if isinstance(part, jobs.ChunkScanned)]
        first = scans[0]
        cut = Geometry(first.slot_bytes, first.slots, first.payload_at, first.file_bytes)
        chunk = Chunk(chunk_id, pool_uid, cut, [number for scan in scans for number in scan.generations])
        core.arena.adopt(chunk)
        self._found[pool_uid] += [
            Found(
                it.layout,
                it.hash,
                it.parent,
                join_key(it.group, it.shard),
                it.size,
                it.last_use_ms,
                slot=Slot(chunk, it.slot),
            )
            for scan in scans
            for it in scan.found
            if round_up(it.size, PAGE) == cut.slot_bytes
        ]

    async def _scan_segment(self, device: Device, file: jobs.SegmentFound) -> None:
        core = self._core
        segment = Segment(device, file.pool, file.sequence, file.file_bytes)
        segment.state = SegmentState.SEALED
        job = jobs.ScanSegment(core.movers.next_id(), str(segment.path), file.pool, file.sequence)
        try:
            parts = await core.movers.run(job, Priority.SCAN)
        except JobFailed as error:
            self._devices.close(device, str(error))
            return
        scans = [part for part in parts if isinstance(part, jobs.SegmentScanned)]
        segment.file_bytes = scans[0].file_bytes
        segment.written = segment.offset = segment.file_bytes
        segment.entries = sum(len(scan.found) for scan in scans)
        self._found.setdefault(file.pool, [])
        core.pool(file.pool)
        core.nvme.adopt(segment)
        if scans[0].faults or not scans[0].usable:
            log("segment.damaged", path=segment.path, faults=scans[0].faults, usable=scans[0].usable)
            core.pool(file.pool).counters["pages_lost_nvme"] += scans[0].faults
        self._found[file.pool] += [
            Found(
                it.layout,
                it.hash,
                it.parent,
                join_key(it.group, it.shard),
                it.size,
                file.sequence // _US_PER_MS,
                nvme=Location(segment, it.offset, it.checksum),
            )
            for scan in scans
            for it in scan.found
        ]


def link(index: Index, found: Sequence[Found], claim: Callable[[Slot], None]) -> int:
    """Put what was found into an empty index, parents first; returns how many pages had no parent.

    `claim` is called with each slot that is used; the others stay free.
    """
    by_parent: defaultdict[tuple[bytes, bytes], dict[bytes, list[Found]]] = defaultdict(dict)
    for it in found:
        by_parent[it.layout, it.parent].setdefault(it.hash, []).append(it)
    linked = 0
    order: list[tuple[Page, int]] = []
    ready = deque((layout, parent) for layout, parent in by_parent if parent == b"")
    while ready:
        layout, parent = ready.popleft()
        for hash_, pages in by_parent.pop((layout, parent), {}).items():
            for it in pages:
                page = _link_page(index, it, claim)
                if page is not None:
                    linked += 1
                    order.append((page, it.last_use_ms))
            if (layout, hash_) in by_parent:
                ready.append((layout, hash_))
    _order_by_use(index, order)
    return len(found) - linked


def _link_page(index: Index, it: Found, claim: Callable[[Slot], None]) -> Page | None:
    """The page, if it is of use: its parent is there, and it lies nowhere newer in this tier."""
    try:
        page = index.add(it.layout, it.hash, it.parent or None, it.key, it.size)
    except AbsentParent:
        return None
    if page.size != it.size:
        return None
    if it.slot is not None:
        if page.slot is not None:
            return None
        claim(it.slot)
        index.set_slot(page, it.slot)
    elif it.nvme is not None:
        if page.nvme is not None and page.nvme.segment.sequence > it.nvme.segment.sequence:
            return None
        index.set_nvme(page, it.nvme)
    return page


def _order_by_use(index: Index, order: Sequence[tuple[Page, int]]) -> None:
    """Warm pages up in the order of their last use, every ancestor as warm as its warmest descendant."""
    last_use: dict[Page, int] = {}
    for page, used in order:
        last_use[page] = max(used, last_use.get(page, 0))
    depth: dict[Page, int] = {}
    for page in last_use:  # parents were linked first
        parent = page.node.parent
        depth[page] = depth[parent.pages[page.key]] + 1 if parent else 0
    for page in sorted(depth, key=lambda it: -depth[it]):
        if page.node.parent:
            above = page.node.parent.pages[page.key]
            last_use[above] = max(last_use[above], last_use[page])
    index.touch_pages(sorted(last_use, key=lambda it: (last_use[it], -depth[it])))
