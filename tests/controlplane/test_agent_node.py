"""kvtier-node before the real API server: preflight, preparation, release, and what it writes.

The device is a folder and the arena a tmpfs below the test's own folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.cachenode import ApiError, CacheNode
from kvtier_agent.link import Device, DeviceAbsent
from kvtier_agent.node import keeper as keeper_module
from kvtier_agent.node.arena import is_mounted, remove_arena
from kvtier_agent.node.devices import Devices
from kvtier_agent.node.keeper import ArenaPlace, Keeper
from kvtier_agent.node.raw_devices import RawDevices
from kvtier_agent.node.store_link import StoreLink

from dev.cluster.cluster import Cluster
from tests.controlplane.agent_nodes import (
    admin_client,
    read_cache_node,
    store_cache_node,
    stored_cache_node,
    until,
    until_reason,
)
from tests.controlplane.crds_api import Api, Object, connect
from tests.unit.node.loop_devices import WITH_LOOP_DEVICES, disk_below
from tests.unit.node.plugin_harness import Store

NODE = "agent-node"
STORE_UID = 64100


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Api:
    return connect(control_plane.programs["kubectl"], control_plane.kubeconfig)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same passes, sooner."""
    for name, pause_s in {"RECHECK_FAILING_S": 0.3, "RECHECK_S": 1.0, "STORE_ABSENT_S": 2.0}.items():
        monkeypatch.setattr(keeper_module, name, pause_s)


@dataclass
class Machine:
    """A node's folders."""

    root: Path

    @property
    def device(self) -> Path:
        return self.root / "host/mnt/nvme0"

    @property
    def arena(self) -> Path:
        return self.root / "arena"

    @property
    def node_socket(self) -> Path:
        return self.root / "node/node.sock"


@pytest.fixture
def machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="kvtier-"))
    (root / "host/mnt").mkdir(parents=True)
    (root / "kubelet").mkdir()
    yield Machine(root)
    remove_arena(root / "arena")
    shutil.rmtree(root)


@asynccontextmanager
async def running_keeper(api: Api, machine: Machine) -> AsyncIterator[Keeper]:
    """kvtier-node but for its CSI plugin; root may be its store."""
    raw_devices = RawDevices(machine.root / "host")
    link = StoreLink(node=NODE, allowed_uids={0}, published=lambda: (), raw_devices=raw_devices)
    devices = Devices(
        host_root=machine.root / "host",
        kubelet_dir=machine.root / "kubelet",
        register=machine.root / "devices.json",
        store_uid=STORE_UID,
        raw_devices=raw_devices,
    )
    async with admin_client(api, machine.root, NODE) as client:
        keeper = Keeper(
            node=NODE,
            link=link,
            devices=devices,
            arena=ArenaPlace(machine.arena, "store", STORE_UID),
            api=client,
            class_file=machine.root / "tier-class",
        )
        parts = (keeper.watch(), keeper.keep(), link.serve(machine.node_socket, group=0))
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            yield keeper
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


def spec(**changes: Any) -> Object:
    tiers = {
        "dram": {"capacityPerNode": "128Mi"},
        "nvme": {"capacityPerNode": "256Mi", "devices": [{"name": "d0", "path": "/mnt/nvme0"}]},
    }
    return {"tierClass": "gpu", "tiers": tiers} | changes


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="kvtier-node runs as root: it mounts and gives folders away")


async def test_missing_path_is_reported_and_noticed_once_mended(api: Api, machine: Machine) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            failing = await until_reason(api, NODE, "Preflight", "DevicePathMissing")
            assert failing["status"] == "False"
            assert failing["message"] == (
                "/mnt/nvme0 does not exist on node agent-node; create it or mount the disk there: "
                "mount --mkdir /dev/DISK /mnt/nvme0"
            )
            assert not machine.arena.exists()
            machine.device.mkdir()
            passed = await until_reason(api, NODE, "Preflight", "PreflightPassed")
            assert passed["status"] == "True"
            assert (machine.device / "kvtier").stat().st_uid == STORE_UID
            assert (machine.arena / "store").stat().st_uid == STORE_UID
            in_use = await until_reason(api, NODE, "Released", "InUse")
            assert in_use["status"] == "False"


@WITH_LOOP_DEVICES
async def test_raw_device_is_named_handed_over_once_blank_and_blanked_at_release(api: Api, machine: Machine) -> None:
    with disk_below(machine.root / "host") as disk:
        disk.write(b"theirs")
        nvme = {"capacityPerNode": "256Mi", "devices": [{"name": "raw", "device": disk.device}]}
        tiers = {"dram": {"capacityPerNode": "128Mi"}, "nvme": nvme}
        with stored_cache_node(api, NODE, spec(tiers=tiers)):
            async with running_keeper(api, machine):
                failing = await until_reason(api, NODE, "Preflight", "DeviceNotBlank")
                assert failing["status"] == "False"
                assert "blkdiscard --zeroout --force" in failing["message"]
                assert (machine.arena / "store").exists(), "the store starts without it"
                store = Store(machine.node_socket)
                try:
                    await store.receive()
                    assert isinstance((await store.receive())[0], DeviceAbsent)
                    disk.write(bytes(6))
                    message, fd = await store.receive_device()
                    assert message == Device("raw")
                    assert fd is not None
                    short = await until_reason(api, NODE, "Preflight", "PreflightPassed")
                    assert short["status"] == "True", "what the store holds is not looked at"
                    disk.become_a_stores()
                    store_cache_node(api, NODE, spec(tiers=tiers, drain=True))
                    await until_reason(api, NODE, "Released", "InUse")
                    assert any(disk.read(8))
                    os.close(fd)
                finally:
                    store.close()
                await until_reason(api, NODE, "Released", "NothingLeft")
                assert not any(disk.read(1 << 20))


async def test_nothing_changed_is_not_written_again(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
            before = read_cache_node(api, NODE)["metadata"]["resourceVersion"]
            await asyncio.sleep(3)
            assert read_cache_node(api, NODE)["metadata"]["resourceVersion"] == before
        async with running_keeper(api, machine):
            await asyncio.sleep(2)
            assert read_cache_node(api, NODE)["metadata"]["resourceVersion"] == before


async def test_conditions_belong_to_the_field_manager_of_kvtier_node(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
        (entry,) = [e for e in read_cache_node(api, NODE)["metadata"]["managedFields"] if e["manager"] == "kvtier-node"]
        assert (entry["operation"], entry["subresource"]) == ("Apply", "status")
        assert set(entry["fieldsV1"]) == {"f:status"}


async def test_changed_capacity_resizes_the_arena(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
            tiers = spec()["tiers"] | {"dram": {"capacityPerNode": "256Mi"}}
            store_cache_node(api, NODE, spec(tiers=tiers))
            await until(lambda: os.statvfs(machine.arena).f_blocks * 4096 == (256 + 64) << 20)


async def test_drain_releases_everything_once_the_store_has_left(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    (machine.device / "theirs").touch()
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
            (machine.arena / "store/chunk").write_bytes(bytes(1 << 20))
            (machine.device / "kvtier/segment").write_bytes(bytes(1 << 20))
            store = Store(machine.node_socket)
            await store.receive()
            store_cache_node(api, NODE, spec(drain=True))
            await asyncio.sleep(3)
            waiting = await until_reason(api, NODE, "Released", "InUse")
            assert waiting["message"] == "the store of TierClass gpu on node agent-node is flushing"
            assert (machine.device / "kvtier/segment").exists()
            store.close()
            released = await until_reason(api, NODE, "Released", "NothingLeft")
            assert released["status"] == "True"
            assert not machine.arena.exists()
            assert [path.name for path in machine.device.iterdir()] == ["theirs"]


async def test_release_that_is_blocked_says_by_what_and_is_finished_later(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    with stored_cache_node(api, NODE, spec()):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
            shutil.rmtree(machine.device)
            machine.device.write_text("a file now")
            store_cache_node(api, NODE, spec(drain=True))
            blocked = await until_reason(api, NODE, "Released", "ReleaseBlocked")
            assert "/mnt/nvme0" in blocked["message"]
            machine.device.unlink()
            await until_reason(api, NODE, "Released", "NothingLeft")


async def test_drain_taken_back_prepares_the_node_again(api: Api, machine: Machine) -> None:
    machine.device.mkdir()
    with stored_cache_node(api, NODE, spec(drain=True)):
        async with running_keeper(api, machine):
            await until_reason(api, NODE, "Released", "NothingLeft")
            store_cache_node(api, NODE, spec(drain=False))
            await until_reason(api, NODE, "Preflight", "PreflightPassed")
            await until_reason(api, NODE, "Released", "InUse")
            assert is_mounted(machine.arena)


async def test_status_is_not_written_to_a_new_object_of_the_old_name(api: Api, machine: Machine) -> None:
    client = admin_client(api, machine.root, NODE)
    async with client:
        with stored_cache_node(api, NODE, spec()):
            old = await _first(client.watch())
        with stored_cache_node(api, NODE, spec()):
            with pytest.raises(ApiError) as refusal:
                await client.apply_status(old, "kvtier-node", {"conditions": []})
            assert refusal.value.is_conflict


async def test_watch_tells_of_changes_and_of_the_end(api: Api, machine: Machine) -> None:
    async with admin_client(api, machine.root, NODE) as client, asyncio.timeout(20):
        watch = client.watch()
        assert await anext(watch) is None
        with stored_cache_node(api, NODE, spec()):
            made = await anext(watch)
            assert made is not None
            assert not made.spec.drain
            await asyncio.to_thread(store_cache_node, api, NODE, spec(drain=True))
            changed = await anext(watch)
            assert changed is not None
            assert (changed.uid, changed.generation, changed.spec.drain) == (made.uid, 2, True)
        assert await anext(watch) is None
        await watch.aclose()


async def _first(watch: AsyncIterator[CacheNode | None]) -> CacheNode:
    async for found in watch:
        assert found is not None
        return found
    raise AssertionError("a watch never ends")
