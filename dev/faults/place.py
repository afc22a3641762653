"""Where faulty devices live, and how all that a killed run left of them is found again and removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .mounts import mounts_below, unmount

PREFIX: Final = "kvtier-faults"
MEMORY: Final = Path("/dev/shm")


class FaultsUnavailable(Exception):
    """This machine cannot make faulty devices; the message says what is missing."""


@contextmanager
def open_place(home: Path = MEMORY) -> Iterator[Path]:
    """A folder for this process's devices, in memory by default; what lives in it is gone when it is left.

    Raises FaultsUnavailable.
    """
    check_available()
    remove_remains(home)
    place = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-", dir=home))
    try:
        yield place
    finally:
        remove_place(place)


def check_available() -> None:
    """Raise FaultsUnavailable where devices cannot be made."""
    if os.geteuid() != 0:
        raise FaultsUnavailable("faulty devices need root, to mount")
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not Path(path).exists():
            raise FaultsUnavailable(f"{path} is missing; load the module: modprobe {Path(path).name.split('-')[0]}")
    for tool in ("losetup", "mkfs.ext4"):
        if shutil.which(tool) is None:
            raise FaultsUnavailable(f"{tool} is missing; install it: apt-get install util-linux e2fsprogs")


def remove_remains(home: Path = MEMORY) -> None:
    """Remove what processes left in `home` that are gone."""
    for place in home.glob(f"{PREFIX}-*"):
        if not Path("/proc", place.name.removeprefix(f"{PREFIX}-").partition("-")[0]).exists():
            remove_place(place)


def remove_place(place: Path) -> None:
    """Take away all mounts in the folder, which frees what they lie on, then the folder. May be repeated."""
    for mount in mounts_below(place):
        unmount(mount)
    shutil.rmtree(place, ignore_errors=True)


@contextmanager
def loop_device(file: Path) -> Iterator[Path]:
    """A block device whose requests go to `file` as direct I/O. It goes when its last user ends, this one included.

    Raises subprocess.CalledProcessError, with losetup's words in `stderr`.
    """
    command = ["losetup", "--direct-io=on", "--show", "--find", str(file)]
    device = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Detached while it is open, the device goes with the last descriptor: also when this process is killed.
        subprocess.run(["losetup", "--detach", device], check=True, capture_output=True)
        yield Path(device)
    finally:
        os.close(fd)
