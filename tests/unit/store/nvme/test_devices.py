"""A device with its real mover process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from kvtier_agent.config import DeviceConfig
from kvtier_agent.store.errors import JobFailed, MoverDied
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.devices import Device, Priority, make_bounce
from kvtier_agent.store.nvme.health import DeviceState, Limits

CAPACITY = 16 << 20
LIMITS = Limits(late_s=0.5, hung_s=2.0, open_s=10.0, probe_s=1.0)

MakeDevice = Callable[..., Device]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.mkdir()
    return path


@pytest.fixture
async def make_device(arena: Path, folder: Path) -> AsyncIterator[MakeDevice]:
    (arena / "movers").mkdir(exist_ok=True)
    bounce = make_bounce()
    made: list[Device] = []
    ticking: list[asyncio.Task[None]] = []

    async def tick(device: Device) -> None:
        while True:
            device.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(0.05)

    def make(name: str = "d", path: Path = folder) -> Device:
        device = Device(DeviceConfig(name=name, path=str(path)), CAPACITY, arena, bounce, LIMITS)
        device.start()
        made.append(device)
        ticking.append(asyncio.create_task(tick(device)))
        return device

    yield make
    for task in ticking:
        task.cancel()
    for device in made:
        await device.close()
    os.close(bounce)


async def _until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


def _pid(device: Device) -> int:
    (pid,) = device._movers.pids()
    return pid


async def test_device_opens_and_flushes(make_device: MakeDevice) -> None:
    device = make_device()
    assert await device.opened()
    assert (device.health.state, device.units > 0) == (DeviceState.READY, True)
    device.written_mark = 3
    assert await device.flush(3)
    assert device.flushed_mark == 3


async def test_waiting_flushes_share_the_next_one(make_device: MakeDevice) -> None:
    device = make_device()
    await device.opened()
    before = device.next_id()
    device.written_mark = 1
    first = asyncio.create_task(device.flush(1))
    for _ in range(3):
        await asyncio.sleep(0)  # the first flush has begun
    device.written_mark = 10
    assert all(await asyncio.gather(first, *(device.flush(mark) for mark in range(1, 11))))
    assert device.next_id() - before - 1 == 2


async def test_killed_mover_is_replaced_and_the_device_opened_again(make_device: MakeDevice) -> None:
    device = make_device()
    await device.opened()
    uuid = device.superblock.uuid if device.superblock else b""
    pid = _pid(device)
    os.kill(pid, signal.SIGSTOP)
    job = asyncio.create_task(device.run(jobs.Sync(device.next_id()), Priority.SYNC))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(MoverDied):
        await job
    assert await device.flush(0)
    await device.run(jobs.Sync(device.next_id()), Priority.SYNC)
    assert device.superblock is not None
    assert (device.superblock.uuid, device.health.state) == (uuid, DeviceState.READY)


async def test_stopped_mover_is_slow_then_replaced(make_device: MakeDevice) -> None:
    """As of a device that holds its mover in the kernel."""
    device = make_device()
    await device.opened()
    pid = _pid(device)
    os.kill(pid, signal.SIGSTOP)
    job = asyncio.create_task(device.run(jobs.Sync(device.next_id()), Priority.SYNC))
    await _until(lambda: device.health.state is DeviceState.SLOW, 5.0)
    assert "did not come back" in device.health.error
    assert not job.done()
    await _until(lambda: device.health.state is DeviceState.READY)
    with pytest.raises(MoverDied):
        await job
    assert _pid(device) != pid


async def test_slow_device_that_answers_again_is_used_again(make_device: MakeDevice) -> None:
    device = make_device()
    await device.opened()
    pid = _pid(device)
    os.kill(pid, signal.SIGSTOP)
    job = asyncio.create_task(device.run(jobs.Sync(device.next_id()), Priority.SYNC))
    await _until(lambda: device.health.state is DeviceState.SLOW, 5.0)
    os.kill(pid, signal.SIGCONT)
    await job
    await _until(lambda: device.health.state is DeviceState.READY, 5.0)
    assert (_pid(device), device.health.error) == (pid, "")


async def test_device_that_goes_and_comes_back_is_used_again(make_device: MakeDevice, folder: Path) -> None:
    device = make_device()
    await device.opened()
    away = folder.with_name("away")
    folder.rename(away)
    device.health.read_failed(19, "gone", asyncio.get_running_loop().time())
    await _until(lambda: "No such file" in device.health.error)
    assert device.health.state is DeviceState.GONE
    away.rename(folder)
    await _until(lambda: device.health.state is DeviceState.READY)


async def test_device_that_comes_back_blank_is_refused(make_device: MakeDevice, folder: Path) -> None:
    device = make_device()
    await device.opened()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "kvtier.dev").write_bytes(bytes(CAPACITY))
    device.health.read_failed(19, "gone", asyncio.get_running_loop().time())
    await _until(lambda: device.health.state is DeviceState.REFUSED)
    assert "came back as another device" in device.health.error
    assert (folder / "kvtier.dev").read_bytes() == bytes(CAPACITY)


async def test_second_store_does_not_get_the_device(make_device: MakeDevice) -> None:
    first = make_device()
    await first.opened()
    second = Device(
        DeviceConfig(name="other", path=str(first.path)),
        CAPACITY,
        first._movers._arena,
        first._bounce_fd,
        Limits(open_s=0.5),
    )
    second.start()
    try:
        await _until(lambda: second.health.state is DeviceState.REFUSED)
        assert "in use by another process" in second.health.error
    finally:
        await second.close()


async def test_missing_folder_is_a_failed_device_until_it_is_there(make_device: MakeDevice, tmp_path: Path) -> None:
    device = make_device(path=tmp_path / "later")
    assert not await device.opened()
    with pytest.raises(JobFailed):
        await device.run(jobs.Sync(device.next_id()), Priority.SYNC)
    (tmp_path / "later").mkdir()
    await _until(lambda: device.health.state is DeviceState.READY)
