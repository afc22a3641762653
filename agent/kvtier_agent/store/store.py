"""The store: one index over dram and nvme for each pool, without its sockets.

Puts together the books, the movers and what works on them; decides nothing itself. Sessions and
listeners are in `server`, processes and signals in `main`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kvtier_client.protocol.messages import Report, Tier

from kvtier_agent.config import StoreConfig
from kvtier_agent.control import DeviceSnapshot, PoolGrant, PoolSnapshot, SetPools, TierUse

from .accounts import Accounts
from .aio import going_on
from .arena_format import PAGE, is_pool_uid
from .chunks import Chunks
from .core import Core, Pool, unix_now
from .descriptors import Descriptors
from .edits import Edits
from .errors import IndexBroken, StoreError
from .gets import Gets
from .handed import Handed
from .hugepages import decide_alignment
from .log import log
from .movers import COPY, Movers
from .no_nvme import NoNvme
from .nvme.tier import Nvme
from .put_plan import check_layout
from .puts import Puts
from .recovery import Recovery, first_number, list_chunks
from .room import Room
from .touches import Touches

_PURGE_POLL_S: Final = 0.05
_PURGE_REPORT_S: Final = 5.0
_PURGE_RETRY_S: Final = 5.0
"""Between two attempts of a purge that fails, at most."""

ChunkTold = Callable[[str, int], None]


class Store:
    """All pools of one node. Event loop thread only."""

    def __init__(self, config: StoreConfig, handed: Handed) -> None:
        """The caller has the arena's locks (`recovery.settle_arena`). Raises HugePagesMissing, OSError."""
        arena_path = Path(config.arena.path)
        found = list_chunks(arena_path)
        strict = config.node_socket is not None
        alignment = decide_alignment(arena_path, max(PAGE, config.arena.slot_alignment), strict=strict)
        self.movers = Movers(COPY, config.movers, arena_path)
        self._core = Core(config, self.movers, Chunks(first_number(it.id for it in found)), alignment)
        self._room = Room(self._core)
        self._core.nvme = self._nvme = (
            Nvme(
                config.nvme,
                arena_path,
                self._room,
                handed=handed if strict else None,
                mean_page_bytes=int(config.mean_page),
            )
            if config.nvme is not None
            else NoNvme()
        )
        self.edits = Edits(self._core)
        self._touches = Touches(self._core)
        self.gets = Gets(self._core, self._touches)
        self.puts = Puts(self._core, self._room)
        self.descriptors = Descriptors(self._core)
        self._recovery = Recovery(self._core, self._room, self.edits, found)
        self.accounts = Accounts(arena_path)
        self._to_retire: set[str] = set()
        """Pools of which an account was lost, and which are not recovered yet."""
        self._on_nvme: set[str] = set()
        """Pools that were found there and are neither granted nor purged yet."""
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        self._purges: dict[str, asyncio.Task[None]] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends, with the error, when something was found that keeps this store from serving."""

    async def start(self, chunk_added: ChunkTold, chunk_gone: ChunkTold) -> None:
        """Start the movers, open the devices. Pools are recovered once they are granted.

        The two are called with pool and chunk.
        """

        def added(pool_uid: str, chunk: int) -> None:
            self.descriptors.add(pool_uid, chunk)
            chunk_added(pool_uid, chunk)

        def gone(pool_uid: str, chunk: int) -> None:
            self.descriptors.forget(chunk)
            chunk_gone(pool_uid, chunk)

        self._core.chunk_added, self._core.chunk_gone = added, gone
        self.movers.start()
        self._on_nvme = await self._nvme.open()
        self._core.tasks.start("touches", self._touches.run())

    async def close(self) -> None:
        """End background work and the movers. Raises nothing; `flush` first."""
        await self._core.tasks.cancel()
        await self._nvme.close()
        await self.movers.close()
        self.descriptors.close()

    def pool(self, uid: str) -> Pool | None:
        """The pool, if it is served now."""
        found = self._core.pools.get(uid)
        return found if found is not None and found.grant is not None and found.recovered else None

    def apply_grants(self, grants: tuple[PoolGrant, ...]) -> None:
        """Serve these pools and no others, whose connections were ended before, and start to purge the others.

        A pool that is new is served once it is recovered. One that is being purged is served once that is done: apply
        again then.
        """
        core = self._core
        wanted = {grant.uid: grant for grant in grants if is_pool_uid(grant.uid)}
        for grant in grants:
            if grant.uid not in wanted:
                log("pool.refused", pool=grant.uid, error="the UID cannot name a folder")
        for uid in {*core.pools, *self._recovery.pool_uids(), *self._on_nvme} - wanted.keys() - self._purges.keys():
            pool = core.pool(uid)
            pool.grant = None
            self._purges[uid] = core.tasks.start("purge", self._purge(pool))
        for uid in wanted.keys() - self._purges.keys():
            grant = wanted[uid]
            pool = core.pool(uid, grant.eviction)
            pool.grant = grant
            if not pool.recovered and uid not in self._recoveries:
                self._recoveries[uid] = core.tasks.start("recover", self._recover(pool))

    async def purged(self) -> None:
        """Wait until all that was to be purged is gone, durably. Raises what ends the store."""
        await self._all_done(self._purges)

    async def recovered(self) -> None:
        """Wait until every granted pool is served. Raises what ends the store."""
        await self._all_done(self._recoveries)

    def retire_lost(self, grants: Iterable[PoolGrant]) -> None:
        """Empty the DRAM, as it is now, of pools that an account has no more, and use that memory no more.

        Pods of the account have it mapped. A pool that is not recovered is emptied before it is served.
        """
        for grant in grants:
            if is_pool_uid(grant.uid) and self.accounts.lose(grant):
                log("pool.retired", pool=grant.uid)
                pool = self._core.pools.get(grant.uid)
                if pool is not None and pool.recovered:
                    self._retire(pool)
                else:
                    self._to_retire.add(grant.uid)

    async def keep_up(self) -> None:
        """What is due now and then: lapsed holds, pins and blocks, and memory that has to be given back."""
        now = asyncio.get_running_loop().time()
        for pool in self.served():
            with going_on("lapse"):
                pool.holds.expire(now)
                pool.index.unpin_expired(unix_now())
                pool.index.free_deleted(pool.index.take_late())
                pool.progress.fire()
        with going_on("trim"):
            await self._room.trim()
        with going_on("accounts"):
            if not self._core.chunks.retired and not self._to_retire:
                self.accounts.forget_lost()
        for pool in self.served():
            with going_on("expire"):
                await self.edits.expire(pool)

    async def flush(self, deadline: float) -> bool:
        """Whether all that was put is on its device, by `deadline` (the loop's time)."""
        pools = [pool for pool in self._core.pools.values() if pool.recovered]
        return all(await asyncio.gather(*(self._nvme.flush(pool, deadline) for pool in pools)))

    def report(self, pool: Pool, message: Report) -> None:
        """An engine says how fast it computes. Raises Refusal."""
        check_layout(message.layout)
        self._nvme.report(pool, message)

    def chunk_ids(self, pool: Pool) -> list[int]:
        """Of the pool's chunks."""
        return [chunk.id for chunk in self._core.chunks.of_pool(pool.uid)]

    def has_chunk(self, chunk_id: int) -> bool:
        """Whether the chunk is still there."""
        return chunk_id in self._core.chunks.files

    def tiers(self) -> dict[str, TierUse]:
        """Capacity and use over all pools."""
        config = self._core.config
        pools = self._core.pools.values()
        dram = TierUse(
            int(config.arena.capacity),
            sum(pool.index.dram_bytes for pool in pools),
            sum(pool.index.dram_pages for pool in pools),
        )
        if config.nvme is None:
            return {Tier.DRAM.value: dram}
        nvme = TierUse(
            int(config.nvme.capacity),
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
            {**pool.counters, "pages_evicted_dram": pool.index.evicted_pages},
            {"pinned_bytes": float(pool.index.pinned_bytes), **self._nvme.gauges(pool)},
        )

    def adoption(self) -> dict[str, float]:
        """What the start found, as far as it has come."""
        return {**self._core.adopted, **self._nvme.found()}

    def served(self) -> list[Pool]:
        """The pools that are granted and recovered."""
        return [pool for pool in self._core.pools.values() if pool.grant is not None and pool.recovered]

    def is_recovered(self) -> bool:
        """Whether every granted pool is served."""
        return all(pool.recovered for pool in self._core.pools.values() if pool.grant is not None)

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """The nvme devices, in the configuration's order."""
        return self._nvme.devices()

    def waits_for_start(self) -> bool:
        """Whether something waits that only a start reads in, which would lose nothing that is there now."""
        return self.is_recovered() and not self._purges and self._nvme.waits_for_start()

    def fail(self, error: BaseException) -> None:
        """End the store with this error."""
        if not self.failed.done():
            known = isinstance(error, StoreError | OSError)
            self.failed.set_exception(error if known else IndexBroken(error))

    def _retire(self, pool: Pool) -> None:
        pool.index.retire_chunks()
        self._core.chunks.retired.update(chunk.id for chunk in self._core.chunks.of_pool(pool.uid))

    async def _recover(self, pool: Pool) -> None:
        try:
            await self._recovery.recover(pool)
            if pool.uid in self._to_retire:
                self._to_retire.discard(pool.uid)
                self._retire(pool)
            self._on_nvme.discard(pool.uid)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the index's defects are no Exceptions
            self.fail(error)
            raise
        finally:
            del self._recoveries[pool.uid]

    async def _purge(self, pool: Pool) -> None:
        """Remove all that the pool has here, as its last I/O and holds end. Durable when it returns."""
        core = self._core
        log("pool.purging", pool=pool.uid, blocks=pool.index.blocks)
        if recovery := self._recoveries.get(pool.uid):
            await asyncio.wait((recovery,))
        pool.recovered = True  # as what is left of it goes, there is nothing to serve
        loop = asyncio.get_running_loop()
        report_at = loop.time() + _PURGE_REPORT_S
        pause_s = _PURGE_POLL_S
        try:
            while True:
                try:
                    if await self._purge_once(pool):
                        break
                    pause_s = _PURGE_POLL_S
                except Exception as error:  # whatever it is: what is left of the pool has to go
                    pause_s = min(2 * pause_s, _PURGE_RETRY_S)
                    log("pool.purge_failed", pool=pool.uid, error=repr(error), retry_s=pause_s)
                if loop.time() >= report_at:
                    report_at = loop.time() + _PURGE_REPORT_S
                    log("pool.purge_waits", pool=pool.uid, holds=len(pool.holds), writing=self._nvme.writing(pool))
                await asyncio.sleep(pause_s)
            del core.pools[pool.uid]
            self._to_retire.discard(pool.uid)
            self._on_nvme.discard(pool.uid)
            log("pool.purged", pool=pool.uid)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the index's defects are no Exceptions
            self.fail(error)
            raise
        finally:
            del self._purges[pool.uid]

    async def _purge_once(self, pool: Pool) -> bool:
        """Remove what is idle now; whether nothing is left, but on closed devices. Raises JobFailed."""
        core = self._core
        pool.holds.expire(float("inf"))
        await self._recovery.discard(pool.uid)
        await self._nvme.purge(pool)
        await self._room.empty(pool)
        if core.chunks.pool_bytes(pool.uid) or self._nvme.writing(pool):
            return False
        await asyncio.to_thread(shutil.rmtree, core.arena_path / pool.uid, ignore_errors=True)
        return True

    async def _all_done(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        while tasks:
            await asyncio.wait(list(tasks.values()))
        if self.failed.done():
            self.failed.result()


def set_pools_of(config: StoreConfig) -> SetPools:
    """What `pools` of a configuration without a cluster amounts to."""
    pools = []
    for pool in config.pools:
        namespace, _, name = pool.name.rpartition("/")
        pools.append(
            PoolGrant(
                pool.uid,
                namespace,
                name,
                int(pool.dram_quota),
                int(pool.nvme_quota or 0),
                (),
                eviction=pool.eviction,
                write=pool.write,
                admission=pool.admission,
                ttl_s=pool.ttl_seconds,
                restore=pool.restore,
            )
        )
    return SetPools(1, tuple(pools))
