"""Devices that are late, fail, fill up, turn read-only or go away, and are used again once they are well."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kvtier_agent.store.errors import DeviceError, JobFailed
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.devices import Device
from kvtier_agent.store.nvme.health import DeviceState, Limits
from kvtier_client.protocol.messages import Reach

from dev.faults.device import FaultyFolder
from dev.faults.filesystems import empty, fill, small_file_system
from dev.faults.rules import Kind, Rules
from tests.unit.store.nvme.patches import before
from tests.unit.store.nvme.rig import LAYOUT, MIB, Chain, Rig, RigPool

LIMITS = Limits(late_s=3.0, hung_s=60.0, open_s=60.0, probe_s=5.0)


@pytest.fixture
async def rig(arena: Path, device: FaultyFolder) -> AsyncIterator[Rig]:
    made = Rig(arena, [device.folder], capacity=64 * MIB, limits=LIMITS)
    await made.start()
    yield made
    device.heal()
    device.release()
    await made.kill()


@pytest.fixture
async def late(arena: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """A store whose device is `away`, with a chain `a` of ten blocks on it, until it is renamed to `one`."""
    (tmp_path / "one").mkdir()
    rig = Rig(arena, [tmp_path / "one"], capacity=64 * MIB, limits=LIMITS)
    await rig.start()
    assert await rig.put(await rig.pool(), Chain("a"), 10, Reach.FLUSHED, 60.0) is Reach.FLUSHED
    await rig.kill()
    (tmp_path / "one").rename(tmp_path / "away")
    assert await rig.start() == set()
    yield rig
    await rig.kill()


def _delay(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[Any]:
    """Hold jobs of a kind back for a second each; those that came so far."""
    return before(monkeypatch, kind, lambda _: asyncio.sleep(1.0))


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _state(rig: Rig) -> DeviceState:
    return rig.nvme._books.devices[0].health.state


async def _stored(rig: Rig, name: str = "a", blocks: int = 40) -> tuple[RigPool, Chain]:
    """A chain that lies on the device alone."""
    pool, chain = await rig.pool(), Chain(name)
    assert await rig.put(pool, chain, blocks, Reach.FLUSHED, 60.0) is Reach.FLUSHED
    await rig.kill()
    await rig.start()
    return await rig.pool(), chain


async def test_late_reads_are_misses_by_the_deadline_and_served_later(rig: Rig, device: FaultyFolder) -> None:
    pool, chain = await _stored(rig)
    device.set(Rules(delay_s={Kind.READ: 3600.0}))
    begun = asyncio.get_running_loop().time()
    assert await rig.get(pool, chain, 0.3) == 0
    assert asyncio.get_running_loop().time() - begun < 3.0
    await rig.until(lambda: _state(rig) is DeviceState.SLOW)
    assert await rig.get(pool, chain, 0.3) == 0
    device.heal()
    device.release()
    await rig.until(lambda: _state(rig) is DeviceState.READY, 60.0)
    assert await rig.get(pool, chain) == 40


async def test_failing_reads_are_misses_and_lose_nothing(rig: Rig, device: FaultyFolder) -> None:
    pool, chain = await _stored(rig)
    device.set(Rules(errno={Kind.READ: errno.EIO}))
    for _ in range(4):
        assert await rig.get(pool, chain, 2.0) == 0
    await rig.until(lambda: _state(rig) is DeviceState.FAILED)
    device.heal()
    await rig.until(lambda: _state(rig) is DeviceState.READY, 60.0)
    assert await rig.get(pool, chain) == 40
    assert pool.counters["pages_lost_nvme"] == 0


@pytest.mark.parametrize("rules", [Rules(read_only=True), Rules(errno={Kind.WRITE: errno.EIO})], ids=["EROFS", "EIO"])
async def test_device_that_takes_no_writes_is_read_and_written_to_again_later(
    rig: Rig, device: FaultyFolder, rules: Rules
) -> None:
    pool, chain = await _stored(rig)
    device.set(rules)
    later = Chain("b")
    assert await rig.put(pool, later, 8, Reach.SEALED) is Reach.DRAM
    await rig.until(lambda: _state(rig) is DeviceState.READ_ONLY)
    assert await rig.get(pool, chain) == 40
    device.heal()
    await rig.until(lambda: _state(rig) is DeviceState.READY, 60.0)
    await rig.until(lambda: pool.counters["pages_written_nvme"] >= 8, 60.0)
    assert await rig.put(pool, later, 8, Reach.FLUSHED, 60.0) is Reach.FLUSHED


async def test_device_that_is_gone_is_used_again_when_it_is_back(rig: Rig, device: FaultyFolder) -> None:
    pool, chain = await _stored(rig)
    device.set(Rules(gone=True))
    for _ in range(4):
        assert await rig.get(pool, chain, 2.0) == 0
    await rig.until(lambda: _state(rig) is DeviceState.GONE, 60.0)
    device.heal()
    await rig.until(lambda: _state(rig) is DeviceState.READY, 60.0)
    assert await rig.get(pool, chain) == 40


async def test_failing_device_leaves_the_other_one_at_work(arena: Path, device: FaultyFolder, tmp_path: Path) -> None:
    rig = Rig(arena, [device.folder, tmp_path], capacity=128 * MIB, limits=LIMITS)
    await rig.start()
    try:
        pool = await rig.pool()
        device.set(Rules(errno={Kind.WRITE: errno.EIO, Kind.READ: errno.EIO}))
        for number in range(4):
            await rig.put(pool, Chain(f"lost-{number}"), 4, Reach.SEALED)
        kept = Chain("kept")
        assert await rig.put(pool, kept, 20, Reach.FLUSHED) is Reach.FLUSHED
    finally:
        device.heal()
        await rig.kill()


async def test_device_that_comes_late_brings_what_lies_on_it(late: Rig, tmp_path: Path) -> None:
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    assert late.find(pool, chain) == (0, 0)
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: late.find(pool, chain)[0] == 10, 60.0)
    pool.index.check()
    assert await late.get(pool, chain) == 10


async def test_device_that_comes_too_late_is_kept_for_the_next_start(late: Rig, tmp_path: Path) -> None:
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    await late.put(pool, Chain("new"), 3)
    assert not late.nvme.waits_for_start()
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: "starts itself anew" in late.nvme.devices()[0].message, 60.0)
    assert late.nvme.waits_for_start()
    late.nvme._books.devices[0].health.gone("taken out", time.monotonic())  # a start would lose sight of it
    assert not late.nvme.waits_for_start()
    await late.kill()
    await late.start()
    pool = await late.pool()
    assert late.find(pool, chain) == (10, 0)
    assert not late.nvme.waits_for_start()


async def test_segment_that_cannot_be_read_is_no_reason_to_start_anew(
    late: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again, ever more seldom, and then left alone once the pool is in use."""
    tries = list[float]()

    async def fail(_: int) -> None:
        tries.append(time.monotonic())
        raise DeviceError(errno.EIO, "a bad spot")

    before(monkeypatch, jobs.StageUnit, fail)
    pool = await late.pool()
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: len(tries) == 2, 60.0)
    assert tries[1] - tries[0] >= 2.0
    await late.put(pool, Chain("new"), 3)
    await late.until(lambda: "could not be read" in late.nvme.devices()[0].message, 60.0)
    assert not late.nvme.waits_for_start()


async def test_device_that_cannot_be_listed_is_tried_again(
    late: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def fail_once(number: int) -> None:
        if number == 1:
            raise JobFailed("not now")

    listings = before(monkeypatch, jobs.ListUnits, fail_once)
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    with pytest.raises(DeviceError):
        await late.nvme.deleted(pool, LAYOUT, [bytes(32)])
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: late.find(pool, chain)[0] == 10, 60.0)
    assert len(listings) == 2
    assert len(late.nvme._journal.records) == 1, "as often as it is read"


async def test_records_are_kept_while_it_is_not_known_what_lies_in_a_unit(
    late: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header may be readable again at the next start."""
    run = Device.run

    async def leave_one_out(self: Device, job: Any, *args: Any) -> Any:
        last = await run(self, job, *args)
        return msgspec.structs.replace(last, unread=1) if isinstance(job, jobs.ListUnits) else last

    monkeypatch.setattr(Device, "run", leave_one_out)
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: late.find(pool, chain)[0] == 10, 60.0)
    assert "could not be read" in late.nvme.devices()[0].message
    await late.nvme.deleted(pool, LAYOUT, [bytes(32)])
    assert late.nvme._journal._still_counting() != []


async def test_deletion_that_only_a_late_device_knows_is_a_reason_to_start_anew(arena: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    rig = Rig(arena, folders, capacity=64 * MIB, limits=LIMITS)
    try:
        await rig.start()
        assert await rig.put(await rig.pool(), Chain("a"), 10, Reach.FLUSHED, 60.0) is Reach.FLUSHED
        chain = Chain("a")
        chain.extend(10)
        (name,) = {it.device.name for it in rig.nvme._books.segments.values()}
        holds, other = folders if name == "d0" else folders[::-1]
        await rig.kill()
        holds.rename(tmp_path / "away")
        await rig.start()
        await rig.nvme.deleted(await rig.pool(), LAYOUT, chain.hashes[6:])
        await rig.kill()
        (tmp_path / "away").rename(holds)
        other.rename(tmp_path / "away")
        await rig.start()
        pool = await rig.pool()
        assert rig.find(pool, chain)[0] == 10, "nobody here knows better"
        (tmp_path / "away").rename(other)
        await rig.until(rig.nvme.waits_for_start, 60.0)
        await rig.kill()
        await rig.start()
        assert rig.find(await rig.pool(), chain)[0] == 6
    finally:
        await rig.kill()


async def test_store_does_not_start_anew_while_a_record_is_on_no_device(
    late: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    await late.put(pool, Chain("new"), 3)
    with pytest.raises(DeviceError):
        await late.nvme.deleted(pool, LAYOUT, chain.hashes[6:])

    async def refuse(_: int) -> None:
        raise JobFailed("not now")

    with monkeypatch.context() as patch:
        before(patch, jobs.WriteArea, refuse)
        (tmp_path / "away").rename(tmp_path / "one")
        await late.until(lambda: "starts itself anew" in late.nvme.devices()[0].message, 60.0)
        await asyncio.sleep(1.0)
        assert not late.nvme.waits_for_start()
    await late.until(late.nvme.waits_for_start, 60.0)


async def test_root_stored_again_brings_nothing_back_from_a_device_that_was_away(late: Rig, tmp_path: Path) -> None:
    """What lay below it there was in no index when the root was deleted."""
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    with pytest.raises(DeviceError, match="may come back"):
        await late.nvme.deleted(pool, LAYOUT, chain.hashes[:1])
    again = Chain("a")
    await late.put(pool, again, 1)
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(late.nvme.waits_for_start, 60.0)
    assert await late.nvme.settle(pool, late._pages(pool, again), Reach.FLUSHED, _in(30.0)) is Reach.FLUSHED
    await late.kill()
    await late.start()
    assert late.find(await late.pool(), chain) == (1, 0)


async def test_blocks_deleted_while_their_device_is_away_do_not_come_back(late: Rig, tmp_path: Path) -> None:
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    await late.put(pool, Chain("new"), 3)
    with pytest.raises(DeviceError, match="may come back"):
        await late.nvme.deleted(pool, LAYOUT, chain.hashes[6:])
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: "starts itself anew" in late.nvme.devices()[0].message, 60.0)
    await late.nvme.deleted(pool, LAYOUT, [bytes(32)])  # durable, and with it what was deleted before
    await late.kill()
    await late.start()
    pool = await late.pool()
    assert late.find(pool, chain) == (6, 0)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_blocks_deleted_while_their_device_is_listed_do_not_come_back(
    late: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before the units were counted nobody knows what lies there, however long that takes."""
    listings = _delay(monkeypatch, jobs.ListUnits)
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    if when == "before":
        with pytest.raises(DeviceError):
            await late.nvme.deleted(pool, LAYOUT, chain.hashes[6:])
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: bool(listings), 60.0)
    if when == "meanwhile":
        await late.nvme.deleted(pool, LAYOUT, chain.hashes[6:])
    await late.until(lambda: late.find(pool, chain)[0] > 0, 60.0)
    assert late.find(pool, chain)[0] == 6
    await late.nvme.deleted(pool, LAYOUT, [bytes(32)])
    await late.kill()
    await late.start()
    assert late.find(await late.pool(), chain)[0] == 6


async def test_blocks_are_deleted_from_a_device_whose_store_was_restarted_often(arena: Path, tmp_path: Path) -> None:
    """However many starts there were before: what is given out now is above all that lies on the device."""
    (tmp_path / "one").mkdir()
    rig = Rig(arena, [tmp_path / "one"], capacity=64 * MIB, limits=LIMITS)
    try:
        for name in ("first", "second", "a"):
            await rig.start()
            assert await rig.put(await rig.pool(), Chain(name), 10, Reach.FLUSHED, 60.0) is Reach.FLUSHED
            await rig.kill()
        (tmp_path / "one").rename(tmp_path / "away")
        await rig.start()
        pool, chain = await rig.pool(), Chain("a")
        chain.extend(10)
        with pytest.raises(DeviceError):
            await rig.nvme.deleted(pool, LAYOUT, chain.hashes[6:])
        (tmp_path / "away").rename(tmp_path / "one")
        await rig.until(lambda: rig.find(pool, chain)[0] > 0, 60.0)
        assert rig.find(pool, chain)[0] == 6
    finally:
        await rig.kill()


async def test_pool_that_was_purged_while_its_device_was_away_is_empty(late: Rig, tmp_path: Path) -> None:
    pool, chain = await late.pool(), Chain("a")
    chain.extend(10)
    pool.grant = None
    await late.nvme.purge(pool)
    pool = await late.pool()
    (tmp_path / "away").rename(tmp_path / "one")
    await late.until(lambda: bool(late.nvme._books.segments), 60.0)
    await late.until(lambda: not late.nvme._books.segments, 60.0)  # found, and freed
    assert late.find(pool, chain) == (0, 0)


async def test_recovery_that_takes_long_is_left_alone_by_upkeep(
    arena: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for its turn to be read is not what comes late."""
    (tmp_path / "one").mkdir()
    rig = Rig(arena, [tmp_path / "one"], capacity=256 * MIB, dram_bytes=128 * MIB, limits=LIMITS)
    try:
        await rig.start()
        pool, chain = await rig.pool(), Chain("a", MIB)
        assert await rig.put(pool, chain, 100, Reach.FLUSHED, 60.0) is Reach.FLUSHED
        units = sorted(it.unit for it in rig.nvme._books.segments.values())
        assert len(units) > 6
        await rig.kill()
        read = _delay(monkeypatch, jobs.StageUnit)
        await rig.start()
        assert rig.find(await rig.pool(), chain) == (100, 0)
        assert sorted(it.unit for it in read) == units  # each once
    finally:
        await rig.kill()


async def test_segment_whose_runs_are_not_known_is_not_sealed(rig: Rig) -> None:
    """As one that was still being read when the store was stopped: its summary would be an empty one."""
    pool, chain = await rig.pool(), Chain("a")
    assert await rig.put(pool, chain, 10, Reach.FLUSHED, 60.0) is Reach.FLUSHED
    (segment,) = rig.nvme._books.segments.values()
    segment.runs.clear()
    await rig.nvme.close()
    await rig.start()
    assert rig.find(await rig.pool(), chain) == (10, 0)


async def test_deletions_are_kept_for_a_device_that_is_away_by_the_other(arena: Path, tmp_path: Path) -> None:
    devices = [tmp_path / name for name in ("one", "two")]
    for device in devices:
        device.mkdir()
    rig = Rig(arena, devices, capacity=128 * MIB, limits=LIMITS)
    try:
        await rig.start()
        pool, chain = await rig.pool(), Chain("a")
        assert await rig.put(pool, chain, 10, Reach.FLUSHED, 60.0) is Reach.FLUSHED
        (segment,) = rig.nvme._books.segments.values()
        await rig.kill()
        its_device = Path(segment.device.path)
        its_device.rename(tmp_path / "away")
        await rig.start()
        pool = await rig.pool()
        assert rig.find(pool, chain) == (0, 0)
        await rig.nvme.deleted(pool, LAYOUT, chain.hashes[6:])
        rig.nvme._journal._still_counting()  # as when the log is written anew
        await rig.nvme.deleted(pool, LAYOUT, [bytes(32)])
        await rig.kill()
        (tmp_path / "away").rename(its_device)
        await rig.start()
        pool = await rig.pool()
        assert rig.find(pool, chain) == (6, 0)
    finally:
        await rig.kill()


async def test_full_file_system_bounds_the_units_until_there_is_room(arena: Path, place: Path) -> None:
    with small_file_system(place, 64 * MIB) as folder:
        (folder / "device").mkdir()
        (folder / "ballast").mkdir()
        rig = Rig(arena, [folder / "device"], capacity=128 * MIB, limits=LIMITS)
        await rig.start()
        try:
            pool = await rig.pool()
            first = Chain("first", MIB)
            assert await rig.put(pool, first, 4, Reach.FLUSHED) is Reach.FLUSHED
            fill(folder / "ballast")
            chains = [Chain(f"c{number}", MIB) for number in range(6)]
            for chain in chains:
                await rig.put(pool, chain, 3, Reach.SEALED)
            assert _state(rig) in (DeviceState.FULL, DeviceState.READY)
            assert rig.nvme.devices()[0].counters["errors"] > 0
            empty(folder / "ballast")
            await rig.until(lambda: _state(rig) is DeviceState.READY, 60.0)
            last = Chain("last", MIB)
            assert await rig.put(pool, last, 6, Reach.FLUSHED, 30.0) is Reach.FLUSHED
            assert await rig.get(pool, last) == 6
        finally:
            await rig.kill()
