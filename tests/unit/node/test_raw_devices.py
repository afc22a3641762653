"""Raw devices, on loop devices: what is seen, who is told apart, what is written and what never is."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtier_agent.node import raw_devices
from kvtier_agent.node.raw_devices import RawDevices, RawState, look_at

from tests.unit.node.loop_devices import MIB, WITH_LOOP_DEVICES, Disk, disk_below
from tests.unit.node.namespaces import WITH_MOUNTS, in_mount_namespace

pytestmark = WITH_LOOP_DEVICES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_below(tmp_path) as made:
        yield made


@pytest.fixture
def raw(tmp_path: Path) -> RawDevices:
    return RawDevices(tmp_path)


def test_blank_device_is_usable_under_the_name_that_stays(disk: Disk, raw: RawDevices) -> None:
    facts = raw.look_at(disk.device)
    assert (facts.state, facts.node, facts.size_bytes) == (RawState.USABLE, disk.node, 16 * MIB)


@pytest.mark.parametrize("offset", [0, MIB - 1, 15 * MIB, 16 * MIB - 1])
def test_device_with_a_byte_at_either_end_is_foreign(disk: Disk, raw: RawDevices, offset: int) -> None:
    disk.write(b"x", offset)
    assert raw.look_at(disk.device).state is RawState.FOREIGN


def test_device_of_a_store_is_usable_even_while_the_store_has_it(disk: Disk, raw: RawDevices) -> None:
    disk.become_a_stores()
    fd = raw.open(disk.device)
    try:
        assert raw.look_at(disk.device).state is RawState.USABLE
        with pytest.raises(OSError, match="busy") as refused:
            raw.open(disk.device)
        assert refused.value.errno == errno.EBUSY
    finally:
        os.close(fd)
    os.close(raw.open(disk.device))


def test_blank_device_that_another_program_has_is_in_use(disk: Disk, raw: RawDevices) -> None:
    fd = os.open(disk.node, os.O_RDWR | os.O_EXCL)
    try:
        facts = raw.look_at(disk.device)
    finally:
        os.close(fd)
    assert (facts.state, facts.detail) == (RawState.IN_USE, "held by another program")
    assert raw.look_at(disk.device).state is RawState.USABLE


def mounted_device_says_where(path: Path) -> None:
    with disk_below(path, mib=32) as disk:
        subprocess.run(["mkfs.ext4", "-q", disk.node], check=True, timeout=30)
        assert look_at(disk.device, host_root=path).state is RawState.FOREIGN
        place = path / "mounted"
        place.mkdir()
        subprocess.run(["mount", disk.node, str(place)], check=True, timeout=30)
        facts = look_at(disk.device, host_root=path)
        subprocess.run(["umount", str(place)], check=True, timeout=30)
        assert (facts.state, facts.detail) == (RawState.IN_USE, f"mounted at {place}")


@WITH_MOUNTS
def test_mounted_device_says_where(tmp_path: Path) -> None:
    in_mount_namespace(mounted_device_says_where, tmp_path)


def test_read_only_device_is_told_as_such(disk: Disk, raw: RawDevices) -> None:
    subprocess.run(["blockdev", "--setro", disk.node], check=True, timeout=30)
    try:
        assert raw.look_at(disk.device).state is RawState.READ_ONLY
    finally:
        subprocess.run(["blockdev", "--setrw", disk.node], check=True, timeout=30)
    assert raw.look_at(disk.device).state is RawState.USABLE


def test_missing_device_names_the_part_that_is_missing(disk: Disk, raw: RawDevices) -> None:
    assert raw.look_at("/dev/disk/by-id/other").detail == "/dev/disk/by-id/other"
    disk.link.unlink()
    disk.link.symlink_to("../../nvme9n9")
    facts = raw.look_at(disk.device)
    assert (facts.state, facts.detail) == (RawState.MISSING, "/dev/nvme9n9")
    disk.link.unlink()
    disk.link.symlink_to(disk.link.name)
    assert raw.look_at(disk.device).state is RawState.MISSING


def test_name_of_a_file_is_no_block_device(disk: Disk, raw: RawDevices) -> None:
    disk.link.unlink()
    disk.link.write_bytes(bytes(MIB))
    assert raw.look_at(disk.device).state is RawState.NO_BLOCK_DEVICE


def test_absolute_link_stays_within_the_nodes_root(disk: Disk, raw: RawDevices) -> None:
    disk.link.unlink()
    disk.link.symlink_to(disk.node)
    below = disk.host / disk.node.lstrip("/")
    below.rename(below.with_name("elsewhere"))
    assert raw.look_at(disk.device).state is RawState.MISSING


def test_blanked_device_of_a_store_is_blank_at_both_ends(disk: Disk, raw: RawDevices) -> None:
    disk.become_a_stores()
    disk.write(b"summary", 16 * MIB - 4096)
    raw.blank(disk.device)
    raw.blank(disk.device)
    assert not any(disk.read(MIB)) and not any(disk.read(MIB, 15 * MIB))
    assert raw.look_at(disk.device).state is RawState.USABLE


def test_blanking_leaves_a_foreign_device_alone_even_in_use(disk: Disk, raw: RawDevices) -> None:
    disk.write(b"somebody's", 512)
    raw.blank(disk.device)
    fd = os.open(disk.node, os.O_RDWR | os.O_EXCL)
    try:
        raw.blank(disk.device)
    finally:
        os.close(fd)
    assert disk.read(10, 512) == b"somebody's"


def test_blanking_what_is_no_block_device_succeeds(disk: Disk, raw: RawDevices) -> None:
    disk.link.unlink()
    disk.link.write_bytes(raw_devices.DEVICE_MAGIC)
    raw.blank(disk.device)
    assert disk.link.read_bytes() == raw_devices.DEVICE_MAGIC


def test_blanking_a_device_that_a_store_still_has_fails(disk: Disk, raw: RawDevices) -> None:
    disk.become_a_stores()
    fd = raw.open(disk.device)
    try:
        with pytest.raises(OSError, match="busy"):
            raw.blank(disk.device)
    finally:
        os.close(fd)
    assert disk.read(8) == raw_devices.DEVICE_MAGIC


def test_blanking_a_device_that_is_gone_succeeds(raw: RawDevices) -> None:
    raw.blank("/dev/disk/by-id/gone")


def test_device_that_hangs_costs_one_thread_and_what_it_opens_late_is_closed(
    disk: Disk, raw: RawDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, opened = threading.Event(), []
    real = raw_devices.open_device

    def late(device: str, *, host_root: Path) -> int:
        answers.wait(20)
        opened.append(real(device, host_root=host_root))
        return opened[-1]

    monkeypatch.setattr(raw_devices, "ANSWER_S", 0.2)
    monkeypatch.setattr(raw_devices, "open_device", late)
    threads = threading.active_count()
    for _ in range(3):
        with pytest.raises(TimeoutError, match="does not answer"):
            raw.open(disk.device)
        assert threading.active_count() == threads + 1
    monkeypatch.setattr(raw_devices, "ANSWER_S", 20)
    answers.set()
    fd = raw.open(disk.device)
    os.close(fd)
    assert len(opened) == 2, "the first came too late, and its claim did not stay"
