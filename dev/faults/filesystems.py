"""File systems for tests: ext4 on a block device or on a file, also one that is nearly full."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .mounts import mount_ext4, unmount
from .place import loop_device

_TORN: Final = (errno.EBADMSG, errno.EUCLEAN)
"""What mount says of metadata with a wrong checksum, as a superblock that a power cut left half written."""
_CORRECTED: Final = 1
"""e2fsck's status after all was mended; above it, something was not."""
_FILLER: Final = "filler"
_CHUNK: Final = bytes(1 << 20)


def make_ext4(device: Path) -> None:
    """Make a file system whose every block can be used by anyone.

    Raises subprocess.CalledProcessError.
    """
    options = ["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]
    subprocess.run(["mkfs.ext4", *options, str(device)], check=True, capture_output=True)


@contextmanager
def mounted(device: Path, folder: Path) -> Iterator[Path]:
    """The device's ext4, mounted at `folder`, and repaired before that if a cut has torn it. Raises OSError."""
    folder.mkdir(exist_ok=True)
    try:
        mount_ext4(device, folder)
    except OSError as error:
        if error.errno not in _TORN:
            raise
        if (status := subprocess.run(["e2fsck", "-fy", str(device)], capture_output=True).returncode) > _CORRECTED:
            raise OSError(error.errno, f"e2fsck of {device} ended with status {status}") from error
        mount_ext4(device, folder)
    try:
        yield folder
    finally:
        unmount(folder)


@contextmanager
def small_file_system(place: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own on a file in `place`; direct I/O works."""
    file = place / "small.img"
    with file.open("wb") as image:
        os.truncate(image.fileno(), size_bytes)
    with loop_device(file) as loop:
        make_ext4(loop)
        with mounted(loop, place / "small") as folder:
            yield folder


def fill(folder: Path, leave_bytes: int = 0) -> None:
    """Take all room of the folder's file system but `leave_bytes`."""
    with (folder / _FILLER).open("ab") as file, suppress(OSError):
        while (room := _free_bytes(folder) - leave_bytes) > 0:
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), min(room, len(_CHUNK)))


def empty(folder: Path) -> None:
    """Give back what `fill` took."""
    (folder / _FILLER).unlink(missing_ok=True)


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
