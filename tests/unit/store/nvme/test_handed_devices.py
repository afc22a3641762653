"""A raw device that comes by its descriptor: taken when it comes, given up when it fails, taken anew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kvtier_agent.config import DeviceConfig
from kvtier_agent.store.handed import Handed
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.devices import Device, Priority, make_bounce
from kvtier_agent.store.nvme.health import DeviceState, Limits

from tests.unit.node.loop_devices import MIB, WITH_LOOP_DEVICES, Disk, disk_below

pytestmark = WITH_LOOP_DEVICES
LIMITS = Limits(late_s=0.5, hung_s=2.0, open_s=10.0, probe_s=1.0)
CAPACITY = 16 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_below(tmp_path, mib=16) as made:
        yield made


class Node:
    """Hands devices over as kvtier-node does."""

    def __init__(self) -> None:
        self.handed = Handed()
        self.handed.want = self._want
        self.wanted: list[str] = []

    def _want(self, name: str) -> None:
        self.wanted.append(name)

    def hand_over(self, disk: Disk) -> None:
        self.handed.arrived("d", os.open(disk.node, os.O_RDWR | os.O_EXCL | os.O_DIRECT))


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.handed.close()


@pytest.fixture
async def device(arena: Path, disk: Disk, node: Node) -> AsyncIterator[Device]:
    (arena / "movers").mkdir(exist_ok=True)
    bounce = make_bounce()
    made = Device(DeviceConfig(name="d", path=disk.device), CAPACITY, arena, bounce, LIMITS, node.handed)

    async def tick() -> None:
        while True:
            made.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(0.05)

    made.start()
    ticking = asyncio.create_task(tick())
    yield made
    ticking.cancel()
    await made.close()
    os.close(bounce)


async def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


def is_claimed(disk: Disk) -> bool:
    try:
        os.close(os.open(disk.node, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return True
    return False


async def test_device_is_opened_once_it_is_handed_over(device: Device, disk: Disk, node: Node) -> None:
    await asyncio.sleep(0.3)
    assert device.health.state is DeviceState.OPENING
    node.hand_over(disk)
    assert await device.opened()
    await device.run(jobs.Sync(device.next_id()), Priority.SYNC)
    assert disk.read(8) == b"KVTDEVIC"
    assert node.wanted == []


async def test_device_that_is_lacking_is_gone_and_taken_when_it_comes(device: Device, disk: Disk, node: Node) -> None:
    node.handed.lacks("d", "it does not exist on node n1")
    assert not await device.opened()
    assert (device.health.state, device.health.error) == (DeviceState.GONE, "it does not exist on node n1")
    await asyncio.sleep(1.2)
    assert node.wanted == [], "kvtier-node tries by itself"
    node.hand_over(disk)
    await until(lambda: device.health.state is DeviceState.READY)


async def test_device_that_fails_is_given_up_whole_and_taken_anew(device: Device, disk: Disk, node: Node) -> None:
    node.hand_over(disk)
    assert await device.opened()
    assert device.superblock is not None
    known = device.superblock.uuid
    device.health.read_failed(19, "no such device", asyncio.get_running_loop().time())
    await until(lambda: node.wanted == ["d"])
    assert node.handed.names() == ()
    await until(lambda: not is_claimed(disk))
    node.handed.lacks("d", "busy")
    node.hand_over(disk)
    await until(lambda: device.health.state is DeviceState.READY)
    assert device.superblock.uuid == known
    await device.run(jobs.Sync(device.next_id()), Priority.SYNC)


async def test_another_disk_under_the_same_name_is_refused(
    device: Device, disk: Disk, node: Node, tmp_path: Path
) -> None:
    node.hand_over(disk)
    assert await device.opened()
    device.health.read_failed(19, "no such device", asyncio.get_running_loop().time())
    await until(lambda: node.wanted == ["d"])
    with disk_below(tmp_path, "other", mib=16) as other:
        node.hand_over(other)
        await until(lambda: device.health.state is DeviceState.REFUSED)
        assert "came back as another device" in device.health.error
        assert not any(other.read(MIB))


async def test_device_that_came_before_the_tier_is_kept_for_it(arena: Path, disk: Disk, node: Node) -> None:
    del arena
    node.hand_over(disk)
    assert node.handed.names() == ("d",)
    taken: list[int] = []

    class Taker:
        def hand(self, fd: int) -> None:
            taken.append(fd)

        def lacks(self, message: str) -> None:
            raise AssertionError(message)

    node.handed.lacks("d", "late word")
    node.handed.take("d", Taker())
    assert len(taken) == 1
    node.handed.close()
    assert not is_claimed(disk)
