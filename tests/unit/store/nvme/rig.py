"""An nvme tier with real devices, movers, chunks and a real index, without sockets and copy movers around it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvtier_agent.config import Bytes, DeviceConfig, NvmeConfig
from kvtier_agent.control import PoolGrant
from kvtier_agent.store.aio import Signal
from kvtier_agent.store.arena_format import PAGE, decide_geometry, round_up
from kvtier_agent.store.checksums import payload_digest
from kvtier_agent.store.chunkmap import ChunkMaps
from kvtier_agent.store.fills import Fills
from kvtier_agent.store.nvme.health import Limits
from kvtier_agent.store.nvme.tier import Nvme
from kvtier_agent.store.ports import PoolView
from kvtier_agent.store.refs import decode_refs
from kvtier_client.protocol.messages import Reach
from kvtier_index import Hold, Index

MIB = 1 << 20
LAYOUT = b"L" * 32
KEY = (0, 0, 0)
PATIENT = Limits(late_s=10.0, hung_s=30.0, open_s=20.0)


def payload_of(hash_: bytes, size: int) -> bytes:
    """The bytes that a block's page has in every test."""
    seed = hashlib.blake2b(hash_).digest()
    return random.Random(seed).randbytes(min(size, 4096)).ljust(size, seed[:1])


class Chain:
    """Blocks of one prefix."""

    def __init__(self, name: str, size: int = 64 << 10) -> None:
        self.name, self.size = name, size
        self.hashes: list[bytes] = []

    def extend(self, blocks: int) -> list[bytes]:
        """The hashes of so many more blocks."""
        first = len(self.hashes)
        self.hashes += [
            hashlib.sha256(f"{self.name}/{number}".encode()).digest() for number in range(first, first + blocks)
        ]
        return self.hashes[first:]


class RigPool:
    """A pool (`ports.PoolView`)."""

    def __init__(self, uid: str, nvme_quota: int, **policy: Any) -> None:
        self.uid = uid
        self.index = Index("lru")
        self.grant: PoolGrant | None = PoolGrant(uid, "ns", uid, 1 << 40, nvme_quota, (), **policy)
        self.counters: Counter[str] = Counter()
        self.progress = Signal()
        self.fills = Fills()
        self.dram_slots = 0


class RigRoom:
    """Makes chunks for a pool until it has its slots (`ports.SlotRoom`)."""

    def __init__(self, arena: Path, dram_bytes: int) -> None:
        self.maps = ChunkMaps(arena)
        self.dram_bytes = dram_bytes
        self.used: Counter[str] = Counter()
        self._next = time.time_ns()
        self.relieve: Callable[[PoolView, int], None] = lambda *_: None

    def free_slots(self, pool: PoolView, slot_bytes: int) -> int | None:
        """No limit: the rig's pools have their memory from the start."""
        del pool, slot_bytes
        return None

    async def make_room(self, pool: PoolView, slot_bytes: int, deadline: float) -> bool:
        """As the store's: one step towards a slot."""
        if self.used[pool.uid] + slot_bytes <= self.dram_bytes:
            self._grow(pool, slot_bytes)
            return True
        self.relieve(pool, slot_bytes)
        loop = asyncio.get_running_loop()
        await pool.progress.wait(min(deadline, loop.time() + 0.05))
        return loop.time() < deadline

    def _grow(self, pool: PoolView, slot_bytes: int) -> None:
        wanted = max(slot_bytes, min(8 * MIB, self.dram_bytes - self.used[pool.uid]))
        cut = decide_geometry(slot_bytes, wanted + 64 * 1024 + wanted // slot_bytes * 256, PAGE)
        self._next += 1
        self.maps.create(pool.uid, self._next, cut)
        pool.index.add_chunk(self._next, cut.slot_bytes, cut.slots, cut.payload_at, cut.generation_offset(0), 256, b"")
        self.used[pool.uid] += cut.slots * cut.slot_bytes


class Rig:
    """A store's nvme tier on folders (or block devices), killed and started at will."""

    def __init__(
        self,
        arena: Path,
        devices: Sequence[Path],
        *,
        capacity: int = 256 * MIB,
        dram_bytes: int = 32 * MIB,
        limits: Limits = PATIENT,
    ) -> None:
        self.arena, self.limits = arena, limits
        names = [f"d{number}" for number in range(len(devices))]
        self.config = NvmeConfig(
            capacity=Bytes(capacity),
            devices=tuple(DeviceConfig(name=name, path=str(path)) for name, path in zip(names, devices, strict=True)),
        )
        self.dram_bytes = dram_bytes
        (arena / "movers").mkdir(exist_ok=True)
        self.room = RigRoom(arena, dram_bytes)
        self.nvme: Nvme
        self.pools: dict[str, RigPool] = {}

    async def start(self) -> set[str]:
        """A fresh store process: nothing in DRAM."""
        self.room = RigRoom(self.arena, self.dram_bytes)
        self.pools = {}
        self.nvme = Nvme(self.config, self.arena, self.room, self.limits)
        self.room.relieve = self.nvme.relieve
        return await self.nvme.open()

    async def pool(self, uid: str = "pool-1", nvme_quota: int = 1 << 40, **policy: Any) -> RigPool:
        """The pool, recovered from nvme."""
        pool = self.pools[uid] = RigPool(uid, nvme_quota, **policy)
        await self.nvme.stage(pool)
        while not pool.index.link(5000):
            await asyncio.sleep(0)
        return pool

    async def kill(self) -> None:
        """As kill -9: movers die in the middle of what they do."""
        for device in self.nvme._books.devices:
            for mover in device._movers._movers:
                if mover.process is not None:
                    mover.process.kill()
        await self.nvme._upkeep.cancel()
        await self.nvme._books.tasks.cancel()
        await asyncio.gather(*(it.close() for it in self.nvme._books.devices))

    async def put(
        self,
        pool: RigPool,
        chain: Chain,
        blocks: int,
        reach: Reach = Reach.DRAM,
        within_s: float = 30.0,
        age_s: float = 0.0,
    ) -> Reach:
        """Append blocks to a chain, and have them written, as if that was `age_s` ago."""
        deadline = asyncio.get_running_loop().time() + within_s
        parent = chain.hashes[-1] if chain.hashes else None
        hashes = chain.extend(blocks)
        pages = [(hash_, 0, 0, 0, chain.size) for hash_ in hashes]
        start = 0
        while start < len(pages):
            taken, stop, _ = pool.index.reserve(LAYOUT, parent, pages, start, len(pages), time.time() - age_s, 1 << 30)
            self._fill(pool, [page for _, page in taken])
            if stop == start and not await self.room.make_room(pool, round_up(chain.size, PAGE), deadline):
                raise TimeoutError("no room")
            start = stop
            parent = hashes[start - 1] if start else parent
            self._stored(pool, chain, grew=len(chain.hashes) > blocks)
        if reach is Reach.DRAM:
            return reach
        return await self.nvme.settle(pool, self._pages(pool, chain), reach, deadline)

    def _stored(self, pool: RigPool, chain: Chain, *, grew: bool) -> None:
        pages = self._pages(pool, chain)
        self.nvme.stored(pool, pages, grew=grew)

    def _pages(self, pool: RigPool, chain: Chain) -> list[int]:
        found, _ = pool.index.find(LAYOUT, chain.hashes, [KEY])
        return pool.index.chain_of(LAYOUT, chain.hashes[found - 1], [(0, 0)]) if found else []

    def _fill(self, pool: RigPool, pages: Sequence[int]) -> None:
        if not pages:
            return
        digests = b""
        for ref in decode_refs(pool.index.refs(pages)):
            payload = payload_of(ref.hash, ref.size)
            chunk = self.room.maps.get(pool.uid, ref.chunk)
            chunk.begin(ref.slot, ref.generation)
            chunk.payload(ref.slot, ref.size)[:] = payload
            digest = payload_digest(payload)
            chunk.clear_padding(ref)
            chunk.commit(ref._replace(digest=digest), time.monotonic_ns())
            digests += digest
        assert pool.index.commit(pages, digests) == len(pages)

    def find(self, pool: RigPool, chain: Chain) -> tuple[int, int]:
        """Leading blocks anywhere, and in DRAM."""
        return pool.index.find(LAYOUT, chain.hashes, [KEY])

    async def get(self, pool: RigPool, chain: Chain, within_s: float = 20.0) -> int:
        """Restore the chain, and compare every byte: how many blocks came."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        hold = pool.index.hold(LAYOUT, chain.hashes, [KEY], time.time())
        try:
            await self.nvme.load(pool, hold.missing(), deadline)
            while hold.ready_blocks() < hold.blocks and not hold.missing():
                if not await pool.progress.wait(min(deadline, loop.time() + 1.0)):
                    break
            return self._check(pool, chain, hold)
        finally:
            hold.release()

    def _check(self, pool: RigPool, chain: Chain, hold: Hold) -> int:
        ready = hold.ready_blocks()
        for hash_, ref in zip(chain.hashes[:ready], decode_refs(pool.index.refs(hold.pages[:ready])), strict=True):
            chunk = self.room.maps.get(pool.uid, ref.chunk)
            assert bytes(chunk.payload(ref.slot, ref.size)) == payload_of(hash_, chain.size)
        return ready

    async def evict(self, pool: RigPool) -> None:
        """Take all that lies on nvme out of DRAM."""
        for chunk, *_ in pool.index.chunks():
            pool.index.clear_chunk(chunk, 1 << 30)
            pool.index.reopen_chunk(chunk) if pool.index.chunks() else None

    async def until(self, condition: Any, within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.02)

    def written_bytes(self) -> int:
        return sum(pool.counters["bytes_written_nvme"] for pool in self.pools.values())
