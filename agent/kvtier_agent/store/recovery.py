"""Recovery: what lies in the arena and on nvme becomes a pool's index again, one pool after the other.

Order: locks, leftovers, then of each pool its chunks' slots and its entries on nvme are staged and linked from
the roots of their chains. A page without its parent is dropped. Each step is short, so that pools that are
recovered are served meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from . import jobs
from .aio import let_others
from .arena_format import Geometry, is_pool_uid, parse_chunk_name
from .chunkmap import GONE_SUFFIX, NEW_SUFFIX, free_chunk_file
from .chunks import Chunk
from .core import Core, Pool
from .edits import Edits
from .errors import JobFailed, MoverDied
from .locks import FileLock
from .log import log
from .movers import Priority
from .room import Room, add_to_index

_LINK_PAGES: Final = 512
"""Linked at a stretch: a small part of a millisecond."""
_SCAN_ATTEMPTS: Final = 3


class FoundChunk(NamedTuple):
    """A chunk file."""

    pool_uid: str
    id: int
    file_bytes: int


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


def list_chunks(arena: Path) -> list[FoundChunk]:
    """Every chunk file. Raises OSError."""
    found = []
    for pool in arena.iterdir():
        if is_pool_uid(pool.name) and pool.is_dir():
            for file in pool.iterdir():
                chunk_id = parse_chunk_name(file.name)
                if chunk_id is not None:
                    found.append(FoundChunk(pool.name, chunk_id, file.stat().st_size))
    return sorted(found, key=lambda it: it.id)


def first_number(existing: Iterable[int]) -> int:
    """A number above all that exist and, going by the clock, above all that ever did."""
    return max(max(existing, default=0) + 1, time.time_ns() // 1000)


class Recovery:
    """Reads pools back. Event loop thread only."""

    def __init__(self, core: Core, room: Room, edits: Edits, found: Iterable[FoundChunk]) -> None:
        self._core, self._room, self._edits = core, room, edits
        self._chunks: defaultdict[str, list[Chunk]] = defaultdict(list)
        for it in found:
            self._chunks[it.pool_uid].append(core.chunks.found(*it))

    def pool_uids(self) -> set[str]:
        """Pools of which chunks were found."""
        return set(self._chunks)

    async def recover(self, pool: Pool) -> None:
        """Fill the pool's index; it may be served then. Raises FormatRefused, JobFailed."""
        started = time.monotonic()
        chunks = self._chunks.pop(pool.uid, [])
        scans = [self._core.tasks.start("scan", self._scan(pool, chunk)) for chunk in chunks]
        await asyncio.gather(*scans, self._core.nvme.stage(pool))
        while not pool.index.link(_LINK_PAGES):
            await let_others()
        await self._forget_notes(pool)
        await self._edits.expire(pool)
        self._count(pool, chunks)
        pool.recovered = True
        log(
            "pool.recovered",
            pool=pool.uid,
            blocks=pool.index.blocks,
            dram_pages=pool.index.dram_pages,
            nvme_pages=pool.index.nvme_pages,
            orphans=pool.index.orphans,
            chunks=len(chunks),
            took_s=round(time.monotonic() - started, 3),
        )

    def _count(self, pool: Pool, found: Iterable[Chunk]) -> None:
        """Note what of the predecessor's is in the index."""
        chunks = [self._core.chunks.files[it.id] for it in found if it.id in self._core.chunks.files]
        self._core.adopted.update(
            chunks_adopted=len(chunks),
            pages_adopted=pool.index.dram_pages,
            bytes_adopted=pool.index.dram_bytes,
            slots_discarded=sum(it.cut.slots for it in chunks) - pool.index.dram_pages,
            pages_recovered=pool.index.nvme_pages,
        )

    async def discard(self, pool_uid: str) -> None:
        """Free the chunks of a pool that is not recovered, but purged. May be repeated. Raises JobFailed."""
        chunks = self._chunks.get(pool_uid, [])
        while chunks:
            await self._room.free_file(pool_uid, chunks[-1].id)
            self._core.chunks.discard(chunks.pop())
        self._chunks.pop(pool_uid, None)

    async def _scan(self, pool: Pool, chunk: Chunk) -> None:
        """Stage the chunk's committed slots; a chunk that cannot be read is freed."""
        core = self._core
        for attempt in range(1, _SCAN_ATTEMPTS + 1):
            try:
                job = jobs.ScanChunk(core.movers.next_id(), pool.uid, chunk.id)
                scans = await core.movers.run(job, Priority.SCAN)
                break
            except MoverDied:
                if attempt == _SCAN_ATTEMPTS:
                    raise
        first = scans[0]
        if first.fault:
            await self._lose(pool, chunk, first.fault)
            return
        adopted = Chunk(chunk.id, pool.uid, Geometry(first.slot_bytes, first.slots, first.payload_at, first.file_bytes))
        core.chunks.add(adopted)
        add_to_index(pool, adopted, b"".join(scan.generations for scan in scans))
        for scan in scans:
            pool.index.stage_slots(chunk.id, scan.refs)
            await let_others()
        damaged = sum(scan.damaged for scan in scans)
        if damaged:
            pool.counters["pages_lost_dram"] += damaged
            log("slots.damaged", pool=pool.uid, chunk=f"{chunk.id:x}", slots=damaged)
        core.chunk_added(pool.uid, chunk.id)

    async def _lose(self, pool: Pool, chunk: Chunk, fault: str) -> None:
        pool.counters["chunks_lost"] += 1
        log("chunk.damaged", pool=pool.uid, chunk=f"{chunk.id:x}", bytes_lost=chunk.cut.file_bytes, error=fault)
        try:
            await self._room.free_file(pool.uid, chunk.id)
        except JobFailed as error:
            self._core.chunks.close(chunk)  # it counts until upkeep has freed it
            log("chunk.not_freed", pool=pool.uid, chunk=f"{chunk.id:x}", error=error)
        else:
            self._core.chunks.discard(chunk)

    async def _forget_notes(self, pool: Pool) -> None:
        """The scans have cleared all slots that notes of deletions make void, and no slot is being filled yet."""
        job = jobs.ForgetNotes(self._core.movers.next_id(), pool.uid)
        try:
            await self._core.movers.run(job, Priority.SCAN)
        except JobFailed as error:
            pool.notes_end = None
            log("delete.notes_not_forgotten", pool=pool.uid, error=error)
