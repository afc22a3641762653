"""Loop devices as a node's raw disks, below a root of the test's own."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvtier_agent.link import DEVICE_MAGIC

MIB = 1 << 20
COMMAND_S = 30


@dataclass(frozen=True)
class Disk:
    """A loop device, and its names below `host`."""

    host: Path
    name: str
    node: str

    @property
    def device(self) -> str:
        """The name that stays, as a TierClass has it."""
        return f"/dev/disk/by-id/{self.name}"

    @property
    def link(self) -> Path:
        return self.host / self.device.lstrip("/")

    def write(self, data: bytes, offset: int = 0) -> None:
        with Path(self.node).open("r+b", buffering=0) as disk:
            disk.seek(offset)
            disk.write(data)
            os.fsync(disk.fileno())

    def read(self, size: int, offset: int = 0) -> bytes:
        with Path(self.node).open("rb", buffering=0) as disk:
            disk.seek(offset)
            return disk.read(size)

    def become_a_stores(self) -> None:
        self.write(DEVICE_MAGIC)


@contextmanager
def disk_below(host: Path, name: str = "nvme-eui.01", mib: int = 16) -> Iterator[Disk]:
    """A blank disk, with its node and its link in `host`/dev as udev lays them out; gone afterwards."""
    image = host / f"{name}.img"
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    node = _run("losetup", "--find", "--show", "--direct-io=on", str(image))
    below = host / node.lstrip("/")
    try:
        below.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(below, 0o600 | stat.S_IFBLK, Path(node).stat().st_rdev)
        disk = Disk(host, name, node)
        disk.link.parent.mkdir(parents=True, exist_ok=True)
        disk.link.symlink_to(f"../../{Path(node).name}")
        yield disk
    finally:
        _run("losetup", "--detach", node)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_S).stdout.strip()


def can_loop() -> bool:
    """Whether this machine gives tests a loop device."""
    if os.geteuid() != 0:
        return False
    found = subprocess.run(["losetup", "--find"], capture_output=True, timeout=COMMAND_S)
    return found.returncode == 0


WITH_LOOP_DEVICES = pytest.mark.skipif(not can_loop(), reason="no loop devices: they need root and /dev/loop-control")
