"""The store: one index over DRAM and NVMe for each pool, without its sockets.

Puts together the books, the movers and what works on them; decides nothing itself. Sessions and
listeners are in `server`, processes and signals in `main`.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

from kvtier_client.protocol.messages import Get, GetReply, Lookup, LookupReply, Put, PutReply, Tier

from kvtier_agent.config import StoreConfig
from kvtier_agent.control import PoolGrant, PoolSnapshot, SetPools, TierUse

from . import gets
from .arena import Arena
from .arena_format import is_pool_uid
from .core import Core, Pool
from .devices import Devices
from .errors import JobFailed
from .index import Page
from .keeper import SegmentKeeper
from .loader import Loader
from .log import log
from .movers import Movers
from .nvme import Device, Nvme, SegmentState
from .puts import Puts, Staging
from .recovery import Recovery, first_number, list_chunks
from .room import Room
from .writer import Writer

_PURGE_POLL_S: Final = 0.05
_PURGE_REPORT_S: Final = 5.0


class Store:
    """All pools of one node. Event loop thread only."""

    def __init__(self, config: StoreConfig) -> None:
        """The caller has the arena's locks (`recovery.settle_arena`)."""
        arena_path = Path(config.arena.path)
        self._chunks = list_chunks(arena_path)
        nvme = config.nvme
        devices = [Device(it.name, Path(it.path)) for it in nvme.devices] if nvme else []
        self.movers = Movers(config.movers, arena_path)
        self._core = Core(
            config,
            self.movers,
            Arena(first_number(id_ for _, id_ in self._chunks)),
            Nvme(int(nvme.capacity) if nvme else 0, devices, int(config.mean_page)),
        )
        self._devices = Devices(self._core)
        self._room = Room(self._core)
        self._keeper = SegmentKeeper(self._core, self._devices)
        self._writer = Writer(self._core, self._keeper)
        self._loader = Loader(self._core, self._room, self._devices)
        self._puts = Puts(self._core, self._room, self._writer)
        self._purges: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start the movers and recover. Raises FormatRefused, JobFailed."""
        self.movers.start()
        await Recovery(self._core, self._devices).run(self._chunks)

    async def close(self) -> None:
        """End background work and the movers. Raises nothing; `flush` first."""
        await self._core.tasks.cancel()
        await self.movers.close()

    def pool(self, uid: str) -> Pool | None:
        """The pool, if it is served now."""
        found = self._core.pools.get(uid)
        return found if found is not None and found.grant is not None else None

    def apply_grants(self, grants: tuple[PoolGrant, ...]) -> None:
        """Serve these pools and no others, whose connections were ended before, and start to purge the others.

        A pool that is being purged is served once that is done: apply again then.
        """
        wanted = {grant.uid: grant for grant in grants if is_pool_uid(grant.uid)}
        for grant in grants:
            if grant.uid not in wanted:
                log("pool.refused", pool=grant.uid, error="the UID cannot name a folder")
        for uid, pool in self._core.pools.items():
            if uid not in wanted and uid not in self._purges:
                pool.grant = None
                self._purges[uid] = self._core.tasks.start("purge", self._purge(pool))
        for uid, grant in wanted.items():
            if uid in self._purges:
                continue
            pool = self._core.pool(uid)
            is_new, pool.grant = pool.grant is None, grant
            if is_new:
                self._writer.enqueue(pool, _unwritten(pool))

    async def purged(self) -> None:
        """Wait until all that was to be purged is gone, durably."""
        while self._purges:
            await asyncio.wait(list(self._purges.values()))

    def retire_chunks(self, pool_uid: str) -> None:
        """Empty the pool's DRAM as it is now, and use that memory no more: someone who lost the pool has it mapped."""
        log("pool.retired", pool=pool_uid)
        self._core.arena.retire(pool_uid)

    async def trim(self) -> None:
        """Give back what is retired, and what quotas and capacity no longer allow, as far as it is idle."""
        try:
            await self._room.trim()
        except JobFailed as error:
            log("arena.trim_failed", error=error)
        for pool in list(self._core.pools.values()):
            if pool.grant is not None:
                await self._keeper.trim(pool)

    def expire_holds(self) -> None:
        """Release holds that have lapsed."""
        now = asyncio.get_running_loop().time()
        for pool in self._core.pools.values():
            pool.holds.expire(now)

    async def flush(self, deadline: float) -> bool:
        """Whether all that was put is on its device, by `deadline` (the loop's time)."""
        pools = list(self._core.pools.values())
        return all(await asyncio.gather(*(self._writer.flush(pool, deadline) for pool in pools)))

    def lookup(self, pool: Pool, message: Lookup) -> LookupReply:
        """Raises Refusal."""
        return gets.lookup(pool, message)

    async def get(self, pool: Pool, pod: str, message: Get) -> GetReply:
        """Raises Refusal."""
        return await gets.get(pool, self._loader, pod, message)

    async def put(self, pool: Pool, staging: Staging, message: Put) -> PutReply:
        """Raises Refusal."""
        return await self._puts.put(pool, staging, message)

    def client_chunk_path(self, pool: Pool, chunk_id: int) -> Path:
        """Where a client's descriptor of the chunk is opened."""
        return self._core.client_chunk_path(pool.uid, chunk_id)

    def has_chunk(self, chunk_id: int) -> bool:
        """Whether the chunk is still there."""
        return chunk_id in self._core.arena.chunks

    def tiers(self) -> dict[str, TierUse]:
        """Capacity and use over all pools."""
        core = self._core
        pools = core.pools.values()
        dram = TierUse(
            int(core.config.arena.capacity),
            sum(pool.index.dram_bytes for pool in pools),
            sum(pool.index.dram_pages for pool in pools),
        )
        if core.config.nvme is None:
            return {Tier.DRAM.value: dram}
        nvme = TierUse(
            core.nvme.capacity_bytes,
            sum(pool.index.nvme_bytes for pool in pools),
            sum(pool.index.nvme_pages for pool in pools),
        )
        return {Tier.DRAM.value: dram, Tier.NVME.value: nvme}

    def pool_snapshot(self, pool: Pool, connections: int) -> PoolSnapshot:
        """One served pool's figures."""
        grant = pool.grant
        assert grant is not None
        tiers = {Tier.DRAM.value: TierUse(grant.dram_quota, pool.index.dram_bytes, pool.index.dram_pages)}
        if self._core.config.nvme is not None:
            tiers[Tier.NVME.value] = TierUse(grant.nvme_quota, pool.index.nvme_bytes, pool.index.nvme_pages)
        asked, hit = pool.window.totals()
        return PoolSnapshot(
            grant.uid,
            grant.namespace,
            grant.name,
            tiers,
            pool.index.blocks,
            connections,
            asked,
            hit,
            dict(pool.counters),
        )

    def served(self) -> list[Pool]:
        """The pools that are granted."""
        return [pool for pool in self._core.pools.values() if pool.grant is not None]

    def device_errors(self) -> dict[str, str]:
        """By name, why a device is not in use."""
        return {device.name: device.error for device in self._core.nvme.devices if device.error}

    def direct_io(self) -> dict[str, bool]:
        """By name, whether a device's file system takes direct I/O."""
        return {device.name: device.direct for device in self._core.nvme.devices if not device.error}

    async def _purge(self, pool: Pool) -> None:
        """Remove all that the pool has here, as its last I/O and holds end. Durable when it returns."""
        core = self._core
        log("pool.purging", pool=pool.uid, blocks=pool.index.blocks)
        loop = asyncio.get_running_loop()
        report_at = loop.time() + _PURGE_REPORT_S
        try:
            while not await self._purge_once(pool):
                if loop.time() >= report_at:
                    report_at = loop.time() + _PURGE_REPORT_S
                    log("pool.purge_waits", pool=pool.uid, holds=len(pool.holds), writes=pool.writes)
                await asyncio.sleep(_PURGE_POLL_S)
            await asyncio.to_thread(shutil.rmtree, core.arena_path / pool.uid, ignore_errors=True)
            del core.pools[pool.uid]
            log("pool.purged", pool=pool.uid)
        finally:
            del self._purges[pool.uid]

    async def _purge_once(self, pool: Pool) -> bool:
        """Remove what is idle now; whether nothing is left, but on closed devices."""
        core = self._core
        pool.holds.expire(float("inf"))
        for segment in list(core.nvme.pool_segments(pool.uid)):
            if segment.io == 0 and segment.state is not SegmentState.GONE:
                await self._keeper.drop(segment)
        try:
            for chunk in list(core.arena.pool_chunks(pool.uid)):
                if chunk.id in core.arena.chunks and chunk.is_idle():
                    await self._room.give_back(chunk)
        except JobFailed as error:
            log("pool.purge_failed", pool=pool.uid, error=error)
        left = any(core.nvme.pool_segments(pool.uid)) or core.arena.pool_bytes(pool.uid)
        return not left and pool.writes == 0


def _unwritten(pool: Pool) -> list[Page]:
    """Pages that lie in DRAM only, chains in order."""
    roots = [node for node in pool.index.nodes() if node.parent is None]
    pages: list[Page] = []
    while roots:
        node = roots.pop()
        pages += [page for page in node.pages.values() if page.nvme is None]
        roots += node.children
    return pages


def set_pools_of(config: StoreConfig) -> SetPools:
    """What `pools` of a configuration without a cluster amounts to."""
    pools = []
    for pool in config.pools:
        namespace, _, name = pool.name.rpartition("/")
        pools.append(PoolGrant(pool.uid, namespace, name, int(pool.dram_quota), int(pool.nvme_quota or 0), ()))
    return SetPools(1, tuple(pools))
