"""mount(2) and umount2(2), which Python lacks. Need root; raise OSError."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from pathlib import Path
from typing import Final

_NOSUID: Final = 2
_NODEV: Final = 4
_DETACH: Final = 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_fuse(place: Path, max_read_bytes: int) -> int:
    """A descriptor of /dev/fuse whose requests come from `place`."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={max_read_bytes - 4096}"
    try:
        _mount("kvtier-faults", place, "fuse", _NOSUID | _NODEV, options)
    except OSError:
        os.close(fd)
        raise
    return fd


def mount_ext4(device: Path, place: Path) -> None:
    """Mount an ext4 with its default options, so flushes and journal included."""
    _mount(str(device), place, "ext4", _NOSUID | _NODEV, "")


def unmount(place: Path) -> None:
    """Take the mount away at once; who still uses it keeps it until they end. Does nothing where there is none."""
    with contextlib.suppress(OSError):
        if _libc.umount2(os.fsencode(place), _DETACH) != 0:
            raise OSError(ctypes.get_errno(), "umount")


def mounts_below(folder: Path) -> list[Path]:
    """Every mount in a folder, the last one first."""
    found = [Path(_unescape(line.split()[1])) for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [path for path in reversed(found) if folder == path or folder in path.parents]


def _mount(source: str, place: Path, kind: str, flags: int, options: str) -> None:
    if _libc.mount(source.encode(), os.fsencode(place), kind.encode(), flags, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind} at {place}: {os.strerror(number)}")


def _unescape(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), text)
