"""The cleaner: chains that grew by turns come to lie together, and units are freed without losing what is used."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.store.errors import DeviceError
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.devices import Device
from kvtier_client.protocol.messages import Reach

from tests.unit.store.nvme.patches import before
from tests.unit.store.nvme.rig import LAYOUT, MIB, Chain, Rig


@pytest.fixture
async def large(arena: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """Units of 64 MiB."""
    rig = Rig(arena, [tmp_path], capacity=4096 * MIB, dram_bytes=32 * MIB)
    await rig.start()
    yield rig
    await rig.kill()


async def _grow(rig: Rig, chains: list[Chain], turns: int, blocks: int) -> None:
    pool = rig.pools["pool-1"]
    for turn in range(turns):
        for chain in chains:
            reach = Reach.SEALED if turn == turns - 1 else Reach.DRAM
            await rig.put(pool, chain, blocks, reach, 60.0)


async def test_chains_grown_by_turns_lie_together_after_the_cleaner(large: Rig) -> None:
    pool = await large.pool()
    chains = [Chain(f"c{number}") for number in range(16)]
    await _grow(large, chains, 32, 8)
    await large.until(lambda: all(pool.index.runs(LAYOUT, chain.hashes[-1])[0] <= 2 for chain in chains), 60.0)
    assert pool.counters["bytes_cleaned_nvme"] <= 0.5 * pool.counters["bytes_written_nvme"]
    assert [await large.get(pool, chain) for chain in chains] == [256] * 16
    await large.kill()
    await large.start()
    pool = await large.pool()
    assert [await large.get(pool, chain) for chain in chains] == [256] * 16
    assert max(pool.index.runs(LAYOUT, chain.hashes[-1])[0] for chain in chains) <= 2


async def test_pages_that_were_moved_and_deleted_do_not_come_back(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    before = pool.index.place_of(rig._pages(pool, chain)[0])
    assert await rig.nvme._cleaner._move(pool, rig._pages(pool, chain), [], may_make=True) is not None
    assert pool.index.place_of(rig._pages(pool, chain)[0]) != before
    cut, slots = pool.index.delete(LAYOUT, chain.hashes[5])
    await rig.nvme.deleted(pool, LAYOUT, [cut[at : at + 32] for at in range(0, len(cut), 32)])
    pool.index.free_deleted(slots)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    assert rig.find(pool, chain) == (5, 0)
    assert await rig.get(pool, chain) == 5


async def test_unit_is_freed_once_what_was_moved_out_of_it_is_flushed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a power cut brings the pages back from there."""
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    source = rig.nvme._books.segments[pool.index.place_of(rig._pages(pool, chain)[0])[0]]
    assert await rig.nvme._keeper.make_segment(pool, source.device) is not None
    assert await rig.nvme._cleaner._move(pool, rig._pages(pool, chain), [], may_make=True) is not None
    assert pool.index.segment_live(source.number)[0] == 0

    async def fail_first(number: int) -> None:
        if number == 1:
            raise DeviceError(errno.EIO, "no flush")

    done = before(monkeypatch, (jobs.Sync, jobs.FreeUnits), fail_first)
    assert not await rig.nvme._keeper.free(pool, source)
    assert [type(job) for job in done] == [jobs.Sync]
    assert rig.nvme._keeper.is_idle(pool, source)
    assert await rig.nvme._keeper.free(pool, source)
    assert [type(job) for job in done[1:]] == [jobs.Sync, jobs.FreeUnits]


async def test_who_wants_room_waits_for_pages_that_are_moved(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay in DRAM until then, held by nobody."""
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    assert not rig.nvme.writing(pool)
    run, moving = Device.run, list[bool]()

    async def look(self: Device, job: Any, *args: Any) -> Any:
        if isinstance(job, jobs.Lift):
            moving.append(rig.nvme.writing(pool))
        return await run(self, job, *args)

    monkeypatch.setattr(Device, "run", look)
    woken = asyncio.ensure_future(pool.progress.wait(asyncio.get_running_loop().time() + 30.0))
    assert await rig.nvme._cleaner._move(pool, rig._pages(pool, chain), [], may_make=True) is not None
    assert moving
    assert all(moving)
    assert await woken
    assert not rig.nvme.writing(pool)


async def test_what_is_used_all_the_time_stays_but_for_its_end_in_a_pool_that_is_full(rig: Rig) -> None:
    """Three times its quota is written; one chain is read all the time."""
    pool = await rig.pool(nvme_quota=96 * MIB)
    kept = Chain("kept")
    await rig.put(pool, kept, 64, Reach.SEALED)
    for number in range(30):
        await asyncio.sleep(0.4)  # last uses are told apart by seconds
        await rig.put(pool, Chain(f"c{number}"), 128, Reach.SEALED, 60.0)
        assert await rig.get(pool, kept) >= 60
        assert rig.nvme.used_bytes("pool-1") <= 96 * MIB
    pool.index.check()
    assert pool.index.nvme_bytes >= 0.7 * 96 * MIB
    assert pool.counters["bytes_cleaned_nvme"] <= 0.5 * pool.counters["bytes_written_nvme"]


async def test_units_that_kills_left_partly_filled_are_put_together_before_a_page_goes(rig: Rig) -> None:
    """Thirty kills, each after a chain of 1 MiB: the pool has 18 units."""
    chains = [Chain(f"c{number}") for number in range(30)]
    for chain in chains:
        pool = await rig.pool(nvme_quota=72 * MIB)
        assert await rig.put(pool, chain, 16, Reach.FLUSHED, 60.0) is Reach.FLUSHED
        await rig.kill()
        await rig.start()
    pool = await rig.pool(nvme_quota=72 * MIB)
    assert {rig.find(pool, chain)[0] for chain in chains} == {16}
