"""Chunks are given back by one at a time: pools purged, room made, memory trimmed. What fails is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from kvtier_agent.config import ArenaConfig, Bytes, StoreConfig
from kvtier_agent.control import ServiceAccount
from kvtier_agent.store import jobs
from kvtier_agent.store.arena_format import PAGE, chunk_name, decide_geometry
from kvtier_agent.store.chunks import Chunks
from kvtier_agent.store.core import Core
from kvtier_agent.store.errors import IndexBroken, JobFailed
from kvtier_agent.store.handed import Handed
from kvtier_agent.store.movers import Movers
from kvtier_agent.store.no_nvme import NoNvme
from kvtier_agent.store.room import Room
from kvtier_agent.store.store import Store

from tests.unit.store.process import POOL, grant

WAIT_S = 60.0
CUT = decide_geometry(PAGE, 64 << 10, PAGE)


class _Movers:
    """Do all jobs at once, but for those that `before` keeps up or lets fail."""

    def __init__(self) -> None:
        self.jobs: list[jobs.AnyJob] = []
        self.before: Callable[[Any], Any] | None = None
        self.fault = ""
        """Why no chunk can be read."""

    def next_id(self) -> int:
        return 1

    def forget_chunk(self, pool_uid: str, chunk_id: int) -> None:
        """Nothing is mapped."""

    async def run(self, job: Any, priority: int) -> list[Any]:
        del priority
        self.jobs.append(job)
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(job)
        if isinstance(job, jobs.ScanChunk):
            return [jobs.ChunkScanned(job.id, *CUT, bytes(8 * CUT.slots), b"", 0, self.fault)]
        return [jobs.Done(job.id)]

    def dropped(self) -> list[int]:
        """The chunks that were to be freed, in order."""
        return [job.chunk for job in self.jobs if isinstance(job, jobs.DropChunk)]


class _Gate:
    """Keeps jobs of one kind up until it is opened."""

    def __init__(self, kind: type) -> None:
        self.kind, self.reached, self.opened = kind, asyncio.Event(), asyncio.Event()

    async def __call__(self, job: Any) -> None:
        if isinstance(job, self.kind):
            self.reached.set()
            await self.opened.wait()


def fail_drops(*errors: BaseException) -> Callable[[Any], Any]:
    """The first jobs that free a chunk end so."""
    left = list(errors)

    async def before(job: Any) -> None:
        if left and isinstance(job, jobs.DropChunk):
            raise left.pop(0)

    return before


def config_of(arena: Path) -> StoreConfig:
    return StoreConfig(arena=ArenaConfig(path=str(arena), capacity=Bytes(8 << 20)))


@pytest.fixture
def movers() -> _Movers:
    return _Movers()


@pytest.fixture
async def store(arena: Path, movers: _Movers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that finds three chunks of one pool, without processes."""
    (arena / POOL).mkdir()
    for number in (1, 2, 3):
        (arena / POOL / chunk_name(number)).write_bytes(bytes(CUT.file_bytes))
    made = Store(config_of(arena), Handed())
    for name in ("run", "forget_chunk"):
        monkeypatch.setattr(made.movers, name, getattr(movers, name))
    yield made
    await made.close()


async def serve(store: Store) -> None:
    """The pool is granted, recovered, and its chunks are to be given back."""
    store.apply_grants((grant(),))
    await store.recovered()
    retire(store)


def retire(store: Store) -> None:
    """Someone who has the pool's chunks mapped has the pool no more."""
    store.accounts.note(POOL, ServiceAccount("ns", "gone"))
    store.retire_lost((grant(),))


async def test_purge_and_upkeep_never_give_back_the_same_chunk(
    store: Store, movers: _Movers, arena: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await serve(store)
    movers.before = gate = _Gate(jobs.DropChunk)
    store.apply_grants(())
    await gate.reached.wait()
    upkeep = asyncio.ensure_future(store.keep_up())
    await asyncio.sleep(0.01)
    gate.opened.set()
    await asyncio.wait_for(asyncio.gather(upkeep, store.purged()), WAIT_S)
    assert sorted(movers.dropped()) == [1, 2, 3]
    assert not (arena / POOL).exists()
    assert "failed" not in capfd.readouterr().err


async def test_purge_that_fails_goes_on_less_and_less_often_until_all_is_gone(
    store: Store, movers: _Movers, arena: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    movers.before = fail_drops(JobFailed("no"), ValueError("a defect"), JobFailed("no"))
    store.apply_grants(())
    await asyncio.wait_for(store.purged(), WAIT_S)
    assert not (arena / POOL).exists()
    failures = [line for line in capfd.readouterr().err.splitlines() if "event=pool.purge_failed" in line]
    assert [line.rpartition("retry_s=")[2] for line in failures] == ["0.1", "0.2", "0.4"]


async def test_purge_that_meets_a_defect_of_the_index_ends_the_store_and_is_not_done(
    store: Store, movers: _Movers
) -> None:
    movers.before = fail_drops(BaseException("a defect"))
    store.apply_grants(())
    with pytest.raises(IndexBroken):
        await asyncio.wait_for(store.purged(), WAIT_S)


async def test_chunk_that_could_not_be_freed_is_freed_later(store: Store, movers: _Movers) -> None:
    await serve(store)
    movers.before = fail_drops(JobFailed("no"))
    await store.keep_up()
    assert movers.dropped() == [1]
    await store.keep_up()
    assert movers.dropped() == [1, 2, 3, 1]
    await store.keep_up()
    assert movers.dropped() == [1, 2, 3, 1]


async def test_damaged_chunk_that_could_not_be_freed_is_freed_later(store: Store, movers: _Movers, arena: Path) -> None:
    movers.fault, movers.before = "damaged", fail_drops(JobFailed("no"))
    store.apply_grants((grant(),))
    await store.recovered()
    await store.keep_up()
    assert sorted(movers.dropped()) == [1, 1, 2, 3]
    store.apply_grants(())
    await asyncio.wait_for(store.purged(), WAIT_S)
    assert not (arena / POOL).exists()


async def test_step_of_upkeep_that_fails_keeps_no_other_from_its_turn(
    store: Store, movers: _Movers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store.apply_grants((grant(), grant("pool-uid-2", "other")))
    await store.recovered()
    retire(store)
    movers.before = fail_drops(ValueError("a defect"))
    expired = []

    async def expire(pool: Any) -> None:
        expired.append(pool.uid)
        raise ValueError("another")

    monkeypatch.setattr(store.edits, "expire", expire)
    await store.keep_up()
    assert sorted(expired) == [POOL, "pool-uid-2"]
    steps = [line for line in capfd.readouterr().err.splitlines() if "event=upkeep.failed" in line]
    assert [line.partition("step=")[2].partition(" ")[0] for line in steps] == ["trim", "expire", "expire"]


async def test_pool_that_was_purged_meanwhile_gets_no_chunk(arena: Path, movers: _Movers) -> None:
    core = Core(config_of(arena), cast(Movers, movers), Chunks(1), PAGE)
    core.nvme = NoNvme()
    room = Room(core)
    first, second = core.pool("pool-1"), core.pool("pool-2")
    first.grant, second.grant = grant("pool-1"), grant("pool-2")
    movers.before = gate = _Gate(jobs.CreateChunk)
    deadline = asyncio.get_running_loop().time() + WAIT_S
    makings = [asyncio.ensure_future(room.make(pool, PAGE, deadline)) for pool in (first, second)]
    await gate.reached.wait()
    second.grant = None
    del core.pools[second.uid]
    gate.opened.set()
    assert await asyncio.gather(*makings) == [None, None]
    assert [job.pool for job in movers.jobs if isinstance(job, jobs.CreateChunk)] == ["pool-1"]
