"""Raw devices over the node socket: handed over once, taken back, and said to be absent meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kvtier_agent.link import Device, DeviceAbsent, NodeWelcome
from kvtier_agent.node import handover
from kvtier_crds.models import NvmeDevice

from tests.unit.node.loop_devices import WITH_LOOP_DEVICES, Disk, disk_below
from tests.unit.node.plugin_harness import Plugin, Store, connected_store, running_plugin

pytestmark = WITH_LOOP_DEVICES


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "RETRY_S", 0.1)


@pytest.fixture
async def plugin(scratch: Path) -> AsyncIterator[Plugin]:
    async with running_plugin(scratch) as running:
        yield running


@pytest.fixture
def disk(scratch: Path) -> Iterator[Disk]:
    (scratch / "host").mkdir()
    with disk_below(scratch / "host") as made:
        yield made


def entry(disk: Disk, initialize: str = "IfBlank", name: str = "d0") -> NvmeDevice:
    return NvmeDevice.model_validate({"name": name, "device": disk.device, "initialize": initialize})


async def take(store: Store, name: str = "d0") -> int:
    message, fd = await store.receive_device()
    assert message == Device(name)
    assert fd is not None
    return fd


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(100):
        if await asyncio.to_thread(holds):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


def is_claimed(disk: Disk) -> bool:
    try:
        os.close(os.open(disk.node, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return True
    return False


async def test_store_gets_a_writable_direct_descriptor_and_with_it_the_claim(plugin: Plugin, disk: Disk) -> None:
    plugin.store_link.offer_devices([entry(disk)])
    async with connected_store(plugin) as store:
        assert await store.receive() == (NodeWelcome("n1"), None)
        fd = await take(store)
        assert os.fstat(fd).st_rdev == Path(disk.node).stat().st_rdev
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_RDWR | os.O_DIRECT) == os.O_RDWR | os.O_DIRECT
        assert plugin.store_link.held_devices == {"d0"}
        assert is_claimed(disk)
        os.close(fd)
        assert not is_claimed(disk), "kvtier-node keeps no descriptor of its own"


async def test_device_that_appears_later_is_handed_over_then(plugin: Plugin, disk: Disk) -> None:
    disk.link.rename(disk.link.with_name("away"))
    plugin.store_link.offer_devices([entry(disk)])
    async with connected_store(plugin) as store:
        await store.receive()
        assert await store.receive() == (
            DeviceAbsent(
                "d0",
                f"{disk.device} does not exist on node n1; attach the disk, or see which there are: "
                "ls -l /dev/disk/by-id",
            ),
            None,
        )
        await asyncio.sleep(0.5)
        disk.link.with_name("away").rename(disk.link)
        os.close(await take(store))  # so the absence was said once


async def test_foreign_device_waits_until_it_is_blank(plugin: Plugin, disk: Disk) -> None:
    disk.write(b"x")
    plugin.store_link.offer_devices([entry(disk)])
    async with connected_store(plugin) as store:
        await store.receive()
        absent, _ = await store.receive()
        assert isinstance(absent, DeviceAbsent)
        assert absent.message == (
            f"{disk.device} ({disk.node}) on node n1 holds something that is not kvtier's; if it may be destroyed, "
            f"blank it: blkdiscard --zeroout --force {disk.node}, or set initialize: Always"
        )
        process = await asyncio.create_subprocess_exec("blkdiscard", "--zeroout", "--force", disk.node)
        assert await process.wait() == 0
        os.close(await take(store))


async def test_foreign_device_to_be_initialized_is_handed_over(plugin: Plugin, disk: Disk) -> None:
    disk.write(b"x")
    async with connected_store(plugin) as store:
        await store.receive()
        plugin.store_link.offer_devices([entry(disk)])
        assert isinstance((await store.receive())[0], DeviceAbsent)
        plugin.store_link.offer_devices([entry(disk, "Always")])
        os.close(await take(store))


async def test_device_that_the_store_wants_again_is_opened_anew(plugin: Plugin, disk: Disk) -> None:
    plugin.store_link.offer_devices([entry(disk)])
    async with connected_store(plugin) as store:
        await store.receive()
        os.close(await take(store))
        disk.link.rename(disk.link.with_name("away"))
        store.want("d0")
        assert isinstance((await store.receive())[0], DeviceAbsent)
        assert plugin.store_link.held_devices == frozenset()
        disk.link.with_name("away").rename(disk.link)
        os.close(await take(store))


async def test_device_that_the_store_still_has_is_not_handed_over_again(plugin: Plugin, disk: Disk) -> None:
    plugin.store_link.offer_devices([entry(disk)])
    store = Store(plugin.node_socket, devices=("d0",))
    try:
        assert await store.receive() == (NodeWelcome("n1"), None)
        assert plugin.store_link.held_devices == {"d0"}
        store.want("d0")
        os.close(await take(store))
    finally:
        store.close()


async def test_successor_gets_the_device_once_the_predecessor_let_go(plugin: Plugin, disk: Disk) -> None:
    disk.become_a_stores()
    plugin.store_link.offer_devices([entry(disk)])
    async with connected_store(plugin) as first:
        await first.receive()
        kept = await take(first)
    await until(lambda: not plugin.store_link.connected)
    async with connected_store(plugin) as second:
        await second.receive()
        absent, _ = await second.receive()
        assert absent == DeviceAbsent("d0", f"{disk.device} on node n1: Device or resource busy; see dmesg there")
        os.close(kept)
        os.close(await take(second))


async def test_store_that_ends_before_it_took_its_device_leaves_no_claim(plugin: Plugin, disk: Disk) -> None:
    plugin.store_link.offer_devices([entry(disk)])
    for _ in range(5):
        async with connected_store(plugin) as store:
            await store.receive()
    await until(lambda: not is_claimed(disk) and not plugin.store_link.connected)


async def test_message_out_of_place_ends_the_connection(plugin: Plugin) -> None:
    async with connected_store(plugin) as store:
        await store.receive()
        store.hello()
        with pytest.raises(EOFError):
            await store.receive()
