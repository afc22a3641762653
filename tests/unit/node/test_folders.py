"""Hostile folders: planted links, deep trees, crowds. Nothing outside is touched, nothing recurses."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kvtier_agent.node import volumes as volumes_module
from kvtier_agent.node.folders import clear_folder, folder, make_folder, remove_folder

from tests.unit.node.plugin_harness import AS_ROOT, Plugin, connect, running_plugin


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pod's folder, and its descriptor."""
    path = tmp_path / "pod"
    path.mkdir()
    with folder(path) as descriptor:
        yield path, descriptor


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that must stay whole."""
    path = tmp_path / "outside"
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "file").write_text("precious")
    return path


@pytest.fixture
async def plugin(scratch: Path) -> AsyncIterator[Plugin]:
    async with running_plugin(scratch) as running:
        yield running


def plant_everything(path: Path, outside: Path) -> None:
    (path / "to-folder").symlink_to(outside)
    (path / "to-file").symlink_to(outside / "sub" / "file")
    (path / "dangling").symlink_to("/nowhere")
    (path / "tree" / "a" / "b").mkdir(parents=True)
    (path / "tree" / "a" / "link").symlink_to(outside, target_is_directory=True)
    (path / "tree" / "a" / "b" / "file").write_text("x")
    os.mkfifo(path / "fifo")


def assert_whole(outside: Path) -> None:
    assert (outside / "sub" / "file").read_text() == "precious"


def test_clear_folder_with_planted_links_leaves_their_targets(pod: tuple[Path, int], outside: Path) -> None:
    path, descriptor = pod
    plant_everything(path, outside)
    clear_folder(descriptor)
    assert not list(path.iterdir())
    assert_whole(outside)


def test_clear_folder_far_deeper_than_recursion_allows_empties_it(pod: tuple[Path, int]) -> None:
    path, descriptor = pod
    deepest = os.dup(descriptor)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deepest)
        below = os.open("d", os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = below
    os.close(deepest)
    clear_folder(descriptor)
    assert not list(path.iterdir())


def test_clear_folder_stops_at_its_limit_and_resumes(pod: tuple[Path, int]) -> None:
    path, descriptor = pod
    (path / "crowd").mkdir()
    for number in range(50):
        (path / "crowd" / str(number)).touch()
    rounds = 0
    while list(path.iterdir()):
        assert clear_folder(descriptor, limit=10) <= 12
        rounds += 1
        assert rounds < 20
    assert rounds >= 5


def test_remove_folder_that_is_a_link_removes_the_link(pod: tuple[Path, int], outside: Path) -> None:
    path, descriptor = pod
    (path / "volume").symlink_to(outside)
    remove_folder(descriptor, "volume")
    assert not list(path.iterdir())
    assert_whole(outside)


@pytest.mark.parametrize("part", ["link/sub", "sub/link"])
def test_folder_reached_through_a_link_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    (tmp_path / "sub" / "sub").mkdir()
    (tmp_path / "sub" / "link").symlink_to(tmp_path / "sub")
    with pytest.raises(NotADirectoryError) as refusal, folder(part, root=tmp_path):
        pass
    assert refusal.value.filename == "/" + part[: part.index("link") + 4]


def test_make_folder_where_a_link_stands_is_refused(pod: tuple[Path, int], outside: Path) -> None:
    path, descriptor = pod
    (path / "kvtier").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        make_folder(descriptor, "kvtier", uid=64100, mode=0o700)
    assert outside.stat().st_uid == os.geteuid()


@AS_ROOT
async def test_unpublish_with_planted_links_leaves_their_targets(plugin: Plugin, outside: Path) -> None:
    target = plugin.target()
    await plugin.publish(target)
    plant_everything(target, outside)
    await plugin.unpublish(target)
    assert not target.exists()
    assert_whole(outside)


@AS_ROOT
async def test_publish_over_planted_names_binds_the_socket(scratch: Path, outside: Path) -> None:
    async with running_plugin(scratch) as first:
        target = first.target()
        await first.publish(target)
    (target / "agent.sock").unlink()
    (target / "agent.sock").symlink_to(outside / "sub" / "file")
    async with running_plugin(scratch):
        connect(target).close()
    (target / "agent.sock").unlink()
    (target / "agent.sock" / "sub").mkdir(parents=True)
    async with running_plugin(scratch):
        connect(target).close()
    assert_whole(outside)


@AS_ROOT
async def test_sweep_removes_all_but_the_two_sockets(plugin: Plugin, outside: Path) -> None:
    target = plugin.target()
    await plugin.publish(target)
    sidecar = socket.socket(socket.AF_UNIX)
    with folder(target) as descriptor, sidecar:
        sidecar.bind(f"/proc/self/fd/{descriptor}/kvtier.sock")
        plant_everything(target, outside)
        plugin.volumes.sweep()
        assert {path.name for path in target.iterdir()} == {"agent.sock", "kvtier.sock"}
    connect(target).close()
    assert_whole(outside)


@AS_ROOT
async def test_sweep_removes_a_file_that_bears_a_sockets_name(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    (target / "kvtier.sock").write_bytes(bytes(1 << 20))
    plugin.volumes.sweep()
    assert {path.name for path in target.iterdir()} == {"agent.sock"}


@AS_ROOT
async def test_sweep_of_a_crowd_gives_other_pods_their_turn(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes_module, "SWEEP_STEPS", 20)
    crowded, other = plugin.target("pod-1"), plugin.target("pod-2")
    await plugin.publish(crowded, "volume-1")
    await plugin.publish(other, "volume-2")
    for number in range(100):
        (crowded / str(number)).touch()
    (other / "one").touch()
    plugin.volumes.sweep()
    assert len(list(crowded.iterdir())) == 81
    assert {path.name for path in other.iterdir()} == {"agent.sock"}


@AS_ROOT
async def test_publish_over_a_planted_folder_does_not_wait_for_it_to_be_emptied(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes_module, "SWEEP_STEPS", 20)
    target = plugin.target()
    await plugin.publish(target)
    (target / "agent.sock").unlink()
    (target / "agent.sock").mkdir()
    for number in range(50):
        (target / "agent.sock" / str(number)).touch()
    await plugin.publish(target)
    connect(target).close()
    (aside,) = (path for path in target.iterdir() if path.is_dir())
    assert len(list(aside.iterdir())) == 50
    for _ in range(4):
        plugin.volumes.sweep()
    assert {path.name for path in target.iterdir()} == {"agent.sock"}
