"""The store as a service: sockets, attendant and node link around a Store, from start to clean end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from kvtier_agent.config import PoolConfig, StoreConfig
from kvtier_agent.control import SetPools, Snapshot

from .aio import Tasks, going_on
from .anew import Anew
from .attendant import ATTENDANT, Attendant
from .handed import Handed
from .locks import FileLock
from .log import log
from .nodelink import NodeLink
from .recovery import acquire_lock, settle_arena
from .scheduling import stay_prompt, tidy
from .server import Identity, Server
from .store import Store, set_pools_of

_SNAPSHOT_S: Final = 1.0
_UPKEEP_S: Final = 0.5
_LOCK_WAIT_S: Final = 60.0
_FLUSH_S: Final = 20.0
_BACKLOG: Final = 128


class Service:
    """One store process. Event loop thread only."""

    def __init__(
        self,
        config: StoreConfig,
        config_path: Path,
        anew: Anew,
        pools: SetPools | None = None,
        attendant: Sequence[str] = ATTENDANT,
    ) -> None:
        """`pools`: what is known of them before the attendant says more."""
        self._config = config
        self._server = Server()
        self._attendant = Attendant(config_path, self._set_pools, attendant)
        self._handed = Handed()
        self._link = (
            NodeLink(config.node_socket, config.tier_class or "", self._server, self._handed)
            if config.node_socket
            else None
        )
        self._store: Store | None = None
        self._tasks = Tasks()
        self._latest = set_pools_of(config) if config.pools else pools
        self._changed = asyncio.Event()
        self._anew = anew
        self._again = asyncio.Event()
        self._generation = 0
        self._served = self._drained = False
        self._began = time.monotonic()
        self._took_s: float | None = None
        """From then on until every pool was served for the first time."""

    @property
    def pools(self) -> SetPools | None:
        """As they were told last."""
        return self._latest

    async def run(self, stop: asyncio.Event) -> bool:
        """Serve until `stop`, or until a fresh process is to go on (True).

        Raises FormatRefused, LockHeld, JobFailed, OSError when it cannot start.
        """
        stay_prompt()
        self._tasks.start("attendant", self._attendant.run())
        self._tasks.start("snapshots", self._send_snapshots())
        if self._link is not None:
            self._tasks.start("node link", self._link.run())
        sockets = [bind_socket(pool) for pool in self._config.pools]
        for pool, sock in zip(self._config.pools, sockets, strict=True):
            self._server.listen(pool.socket, sock, Identity(None, pool.uid))
        arena = Path(self._config.arena.path)
        lock = FileLock(arena / "store.lock")
        stopped, starting = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._again.wait())
        try:
            if self._config.node_socket is None:
                arena.mkdir(parents=True, exist_ok=True)  # in a cluster it is there only once its mount is
            if not await _finished(acquire_lock(lock, _LOCK_WAIT_S), stopped):
                return False
            if not await _finished(settle_arena(arena, _LOCK_WAIT_S), stopped):
                return False
            self._store = store = Store(self._config, self._handed)
            if await _finished(store.start(self._server.chunk_added, self._server.chunk_gone), stopped):
                self._server.store = store
                self._tasks.start("pools", self._apply_pools())
                self._tasks.start("upkeep", self._keep_up())
                log("store.serving", arena=self._config.arena.path, movers=self._config.movers)
                await asyncio.wait((stopped, store.failed, starting), return_when=asyncio.FIRST_COMPLETED)
                if store.failed.done():
                    store.failed.result()
            return self._again.is_set()
        finally:
            starting.cancel()
            await self._end()
            lock.release()

    async def _end(self) -> None:
        """Take no more requests, flush what is written, end the other processes.

        Who starts anew does not write back first: DRAM stays as it is, and clients wait.
        """
        self._server.close()
        if self._again.is_set():
            log("store.starting_anew")
        elif self._store is not None:
            flushed = await self._store.flush(asyncio.get_running_loop().time() + _FLUSH_S)
            log("store.stopping", flushed=flushed)
        await self._tasks.cancel()
        if self._store is not None:
            await self._store.close()
        self._handed.close()
        for pool in self._config.pools:
            with contextlib.suppress(OSError):
                Path(pool.socket).unlink()

    def _set_pools(self, message: SetPools) -> None:
        """Grants hold at once; purges and drain follow in order."""
        self._latest = message
        if self._server.store is not None:
            self._server.set_grants(message)
        self._changed.set()

    async def _apply_pools(self) -> None:
        """Act on the latest pools, one change after the other."""
        assert self._store is not None
        while True:
            self._changed.clear()
            message = self._latest
            if message is not None:
                self._drained = False
                self._server.set_grants(message)
                self._store.apply_grants(message.pools)
                self._served = True
                self._attendant.send(self.snapshot())
                if await _finished(self._complete(message), self._changed.wait()):
                    log("pools.applied", generation=message.generation, pools=len(message.pools), drain=message.drain)
                    self._attendant.send(self.snapshot())
            await self._changed.wait()

    async def _complete(self, message: SetPools) -> None:
        """Wait until purges are durable, pools recovered and, for a drain, writes flushed; only then is it acted on."""
        assert self._store is not None
        await self._store.purged()
        self._store.apply_grants(message.pools)
        await self._store.recovered()
        if self._took_s is None:
            self._took_s = round(time.monotonic() - self._began, 3)
        while message.drain and not self._drained:
            self._drained = await self._store.flush(asyncio.get_running_loop().time() + _FLUSH_S)
            await asyncio.sleep(0 if self._drained else _UPKEEP_S)
        self._generation = message.generation

    async def _keep_up(self) -> None:
        store = self._store
        assert store is not None
        while True:
            await asyncio.sleep(_UPKEEP_S)
            try:
                await self._keep_up_once(store)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # the index's defects are no Exceptions
                store.fail(error)
                raise

    async def _keep_up_once(self, store: Store) -> None:
        with going_on("shed"):
            self._server.shed()
        with going_on("store"):
            await store.keep_up()
        with going_on("start anew"):
            linked = self._link is None or not self._link.message  # else there would be no listeners
            if self._anew.is_due(linked and store.waits_for_start(), time.monotonic()):
                self._again.set()
        tidy()

    async def _send_snapshots(self) -> None:
        while True:
            self._attendant.send(self.snapshot())
            await asyncio.sleep(_SNAPSHOT_S)

    def snapshot(self) -> Snapshot:
        """The state now."""
        message = self._not_ready()
        store = self._server.store
        node = socket.gethostname() if self._link is None else "" if self._link.message else self._link.node
        if store is None:
            return Snapshot(False, message, self._generation, False, node, {}, (), taken_s=time.monotonic())
        connections = self._server.connections()
        return Snapshot(
            ready=not message,
            message=message,
            generation=self._generation,
            drained=self._drained,
            node=node,
            tiers=store.tiers(),
            pools=tuple(store.pool_snapshot(pool, connections[pool.uid]) for pool in store.served()),
            devices=store.devices(),
            adoption=store.adoption() | ({} if self._took_s is None else {"seconds": self._took_s}),
            taken_s=time.monotonic(),
        )

    def _not_ready(self) -> str:
        if self._server.store is None or not self._server.store.is_recovered():
            return "recovering"
        if self._link is not None and self._link.message:
            return self._link.message
        return "" if self._served else "the node's pools are not known yet"


async def _finished(work: Coroutine[Any, Any, Any], stopped: Awaitable[Any]) -> bool:
    """Whether `work` ended before `stopped` did; if not, it is cancelled. Raises what `work` raises."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stopped)
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping is not stopped:
        stopping.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.wait((working,))
    return False


def bind_socket(pool: PoolConfig) -> socket.socket:
    """The listening socket of a pool, in place of one that an earlier store left. Raises OSError."""
    path = Path(pool.socket)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path may be longer than a socket address
    finally:
        os.close(folder)
    sock.listen(_BACKLOG)
    return sock
