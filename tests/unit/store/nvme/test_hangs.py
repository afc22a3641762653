"""Devices that hang: what goes on beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.store.nvme import jobs, journal, keeper, recovery
from kvtier_agent.store.nvme.devices import Device
from kvtier_client.protocol.messages import Reach

from tests.unit.store.nvme.patches import before, let_pass
from tests.unit.store.nvme.rig import LAYOUT, MIB, Chain, Rig


@pytest.fixture
async def two(arena: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """Two devices."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    rig = Rig(arena, folders)
    await rig.start()
    yield rig
    await rig.kill()


def _hang(monkeypatch: pytest.MonkeyPatch, kind: type, device: str) -> list[Any]:
    """Have the device hang with every job of a kind; these."""
    return before(monkeypatch, kind, lambda _: asyncio.sleep(3600.0), device)


async def test_deletion_is_done_once_one_of_the_devices_has_it(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_OTHERS_S", 0.1)
    pool, chain = await two.pool(), Chain("a")
    await two.put(pool, chain, 10, Reach.FLUSHED)
    hung = _hang(monkeypatch, jobs.WriteArea, "d0")
    await asyncio.wait_for(two.nvme.deleted(pool, LAYOUT, chain.hashes[5:]), 30.0)
    assert hung
    assert not two.nvme._journal.is_settled, "it is owed to the other"


async def test_all_devices_are_looked_after_while_a_record_hangs(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_OTHERS_S", 0.1)
    pool = await two.pool()
    await two.put(pool, Chain("a"), 10, Reach.FLUSHED)
    device = two.nvme._books.devices[0]
    writable = device.health.writable
    assert writable
    with monkeypatch.context() as patch:
        patch.setattr(type(device.health), "writable", property(lambda self: self is not device.health))
        await two.nvme.deleted(pool, LAYOUT, [bytes(32)])
    looked_after = list[str]()
    tick: Callable[[Device, float], None] = Device.tick

    def note(self: Device, now: float) -> None:
        looked_after.append(self.name)
        tick(self, now)

    monkeypatch.setattr(Device, "tick", note)
    hung = _hang(monkeypatch, jobs.WriteArea, "d0")
    await two.until(lambda: bool(hung), 30.0)
    looked_after.clear()
    await two.until(lambda: looked_after.count("d0") > 2 and looked_after.count("d1") > 2, 30.0)
    assert len(hung) == 1


async def test_device_that_hangs_with_a_new_unit_leaves_the_other_one_at_work(
    two: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_PATIENCE_S", 0.2)
    pool = await two.pool()
    hung = _hang(monkeypatch, jobs.InitUnit, "d0")
    for number in range(4):
        assert await two.put(pool, Chain(f"c{number}"), 10, Reach.FLUSHED) is Reach.FLUSHED
    assert hung


async def test_purge_that_was_repeated_frees_each_unit_once(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time it may be another pool's."""
    pool = await two.pool()
    for number in range(8):
        await two.put(pool, Chain(f"c{number}"), 40, Reach.FLUSHED)
    units = sorted(it.unit for it in two.nvme._books.segments.values() if it.device.name == "d0")
    assert units
    freed = before(monkeypatch, jobs.FreeUnits, let_pass)
    device = two.nvme._books.devices[0]
    device.health.late("it hangs", time.monotonic() + 3600.0)
    for _ in range(3):
        await two.nvme.purge(pool)
    freed.clear()
    device.health.recovered()
    await two.until(lambda: not two.nvme._books.segments, 30.0)
    await asyncio.sleep(1.0)  # upkeep comes by twice
    assert sorted(unit for job in freed for unit in job.units) == units


async def test_runs_that_hang_are_no_others_turn(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await two.pool()
    hung = _hang(monkeypatch, jobs.WriteRun, "d0")
    for number in range(40):
        await two.put(pool, Chain(f"lost-{number}", MIB // 4), 1, Reach.DRAM)
        await asyncio.sleep(0.01)
    await two.until(lambda: len(hung) >= 8, 30.0)
    device = two.nvme._books.devices[0]
    device.health.late("it hangs", time.monotonic() + 3600.0)
    assert await two.put(pool, Chain("kept"), 10, Reach.FLUSHED) is Reach.FLUSHED


async def test_device_that_hangs_while_it_is_read_back_is_given_up(two: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many segments as are read at once are waited for, not one after the other."""
    pool, chain = await two.pool(), Chain("a", MIB)
    two.dram_bytes = two.room.dram_bytes = 160 * MIB
    assert await two.put(pool, chain, 120, Reach.FLUSHED, 60.0) is Reach.FLUSHED
    assert sum(it.device.name == "d0" for it in two.nvme._books.segments.values()) > 6
    await two.kill()
    monkeypatch.setattr(recovery, "_STAGE_S", 0.5)
    hung = _hang(monkeypatch, jobs.StageUnit, "d0")
    await two.start()
    device = two.nvme._books.devices[0]
    first = device._movers.pids()
    await two.pool()
    assert len(hung) == 6
    await two.until(lambda: device._movers.pids() not in ([], first), 30.0)
