"""Device directories: facts as found, one folder made in each, nothing else touched, nothing left."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from kvtier_agent.node.devices import Devices
from kvtier_agent.node.preflight import PathState
from kvtier_agent.node.raw_devices import RawDevices, RawState
from kvtier_crds.models import CacheNodeSpec

from tests.unit.node.cache_nodes import cache_node
from tests.unit.node.loop_devices import WITH_LOOP_DEVICES, disk_below
from tests.unit.node.plugin_harness import AS_ROOT

pytestmark = AS_ROOT
STORE = 64100


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A node's root with two disks."""
    for name in ("mnt/a", "mnt/b", "kubelet"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def devices(host: Path) -> Devices:
    return make_devices(host)


def make_devices(host: Path) -> Devices:
    register = host / "kubelet" / "plugins" / "devices.json"
    return Devices(
        host_root=host,
        kubelet_dir=host / "kubelet",
        register=register,
        store_uid=STORE,
        raw_devices=RawDevices(host),
    )


def spec(*paths: str) -> CacheNodeSpec:
    return cache_node(paths=paths, nvme="1Gi" if paths else None).spec


def test_facts_of_a_plain_folder_give_its_space(host: Path, devices: Devices) -> None:
    (facts,) = devices.fetch_facts(spec("/mnt/a")).devices
    assert facts.state is PathState.FOLDER
    assert facts.holds_kubelet
    assert facts.size_bytes > facts.free_bytes > 0
    assert facts.used_bytes == 0
    (host / "mnt/a/kvtier").mkdir()
    (host / "mnt/a/kvtier/segment").write_bytes(bytes(1 << 20))
    assert devices.fetch_facts(spec("/mnt/a")).devices[0].used_bytes >= 1 << 20


def test_facts_of_a_folder_whose_files_come_and_go_are_those_of_a_folder(host: Path, devices: Devices) -> None:
    pool = host / "mnt/a/kvtier/pool"
    pool.mkdir(parents=True)
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(50):
                (pool / str(number)).touch()
            for number in range(50):
                (pool / str(number)).unlink()

    store = threading.Thread(target=come_and_go)
    store.start()
    try:
        for _ in range(300):
            assert devices.fetch_facts(spec("/mnt/a")).devices[0].state is PathState.FOLDER
    finally:
        ended.set()
        store.join()


def test_facts_of_what_is_no_folder_name_the_part_at_fault(host: Path, devices: Devices) -> None:
    (host / "mnt/file").touch()
    (host / "link").symlink_to("/mnt")
    (host / "mnt/b/kvtier").symlink_to("/etc")
    (host / "mnt/a/kvtier").mkdir()
    os.chown(host / "mnt/a/kvtier", 1000, 1000)
    paths = ("/mnt/none/x", "/mnt/file", "/link/a", "/mnt/a", "/mnt/b")
    found = {facts.path: (facts.state, facts.detail) for facts in devices.fetch_facts(spec(*paths)).devices}
    assert found == {
        "/mnt/none/x": (PathState.MISSING, "/mnt/none"),
        "/mnt/file": (PathState.NO_FOLDER, "/mnt/file"),
        "/link/a": (PathState.NO_FOLDER, "/link"),
        "/mnt/a": (PathState.FOREIGN, "a directory of user 1000"),
        "/mnt/b": (PathState.FOREIGN, "not a directory"),
    }


def test_make_folders_makes_one_private_folder_and_never_the_path(host: Path, devices: Devices) -> None:
    devices.make_folders(spec("/mnt/a"))
    made = (host / "mnt/a/kvtier").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (STORE, STORE, 0o700)
    assert (host / "mnt/a").stat().st_uid == 0
    with pytest.raises(FileNotFoundError):
        devices.make_folders(spec("/mnt/none"))
    assert not (host / "mnt/none").exists()


def test_make_folders_through_a_link_is_refused(host: Path, devices: Devices) -> None:
    (host / "mnt/link").symlink_to(host / "mnt/a")
    with pytest.raises(NotADirectoryError):
        devices.make_folders(spec("/mnt/link"))
    assert not (host / "mnt/a/kvtier").exists()


def test_remove_all_leaves_what_is_not_kvtiers(host: Path, devices: Devices) -> None:
    devices.make_folders(spec("/mnt/a", "/mnt/b"))
    (host / "mnt/a/theirs").write_text("theirs")
    (host / "mnt/a/kvtier/pool").mkdir()
    (host / "mnt/a/kvtier/pool/segment").write_text("ours")
    devices.remove_all(spec("/mnt/a", "/mnt/b"))
    devices.remove_all(spec("/mnt/a", "/mnt/b"))
    assert sorted(path.name for path in (host / "mnt").rglob("*")) == ["a", "b", "theirs"]


def test_remove_all_after_a_restart_takes_devices_that_left_the_class(host: Path, devices: Devices) -> None:
    devices.make_folders(spec("/mnt/a", "/mnt/b"))
    successor = make_devices(host)
    assert successor.unwanted(spec("/mnt/a")) == {"/mnt/b"}
    successor.remove_all(spec("/mnt/a"))
    assert not (host / "mnt/b/kvtier").exists()
    assert successor.unwanted(spec()) == set()


def test_remove_all_of_a_disk_that_is_gone_succeeds(host: Path, devices: Devices) -> None:
    devices.make_folders(spec("/mnt/a"))
    (host / "mnt/a/kvtier").rmdir()
    (host / "mnt/a").rmdir()
    devices.remove_all(spec("/mnt/a"))
    assert devices.unwanted(spec()) == set()


def test_unreadable_register_does_not_stop_the_node(host: Path, devices: Devices) -> None:
    devices.make_folders(spec("/mnt/a"))
    (host / "kubelet/plugins/devices.json").write_bytes(b"")
    devices.make_folders(spec("/mnt/b"))
    assert devices.unwanted(spec()) == {"/mnt/b"}


@WITH_LOOP_DEVICES
def test_raw_device_is_remembered_and_blanked_after_it_left_the_class(host: Path, devices: Devices) -> None:
    with disk_below(host) as disk:
        with_raw = cache_node(devices=({"name": "r0", "device": disk.device}, {"name": "d0", "path": "/mnt/a"})).spec
        assert devices.fetch_facts(with_raw).raw_devices[0].state is RawState.USABLE
        devices.make_folders(with_raw)
        disk.become_a_stores()
        successor = make_devices(host)
        assert successor.unwanted(spec("/mnt/a")) == {disk.device}
        successor.remove_all(spec("/mnt/a"))
        assert not any(disk.read(4096))
        assert successor.unwanted(spec()) == set()


@WITH_LOOP_DEVICES
def test_raw_device_that_the_store_holds_is_not_touched_to_be_judged(devices: Devices) -> None:
    raw = cache_node(devices=({"name": "r0", "device": "/dev/disk/by-id/hangs"},)).spec
    assert devices.fetch_facts(raw, {"r0"}).raw_devices[0].state is RawState.USABLE
    assert devices.fetch_facts(raw).raw_devices[0].state is RawState.MISSING
