"""A blkio control group: device bandwidth for the processes in it. Needs root; cgroup v1 and v2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kvtier_bench.figures import CannotRun

_V1: Final = Path("/sys/fs/cgroup/blkio")
_V2: Final = Path("/sys/fs/cgroup")
_REMOVAL_S: Final = 20.0


class IoGroup:
    """One group. Made by `open_io_group`."""

    def __init__(self, path: Path, is_v1: bool) -> None:
        self._path = path
        self._is_v1 = is_v1

    @property
    def procs(self) -> Path:
        """A process that writes its id here joins."""
        return self._path / "cgroup.procs"

    def limit(self, read_bytes_per_s: Mapping[str, int | None]) -> None:
        """From now on at most so many bytes a second are read from each device (`MAJOR:MINOR`); None: no limit."""
        for device, limit in read_bytes_per_s.items():
            if self._is_v1:
                (self._path / "blkio.throttle.read_bps_device").write_text(f"{device} {limit or 0}")
            else:
                (self._path / "io.max").write_text(f"{device} rbps={limit or 'max'}")

    def remove(self) -> None:
        """Wait until no process is in it, and remove it.

        Raises OSError when one stays.
        """
        deadline = time.monotonic() + _REMOVAL_S
        while True:
            try:
                self._path.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


@contextlib.contextmanager
def open_io_group() -> Iterator[IoGroup]:
    """A new group without limits; leave the block when no process is in it.

    Raises CannotRun.
    """
    is_v1 = _V1.is_dir()
    path = (_V1 if is_v1 else _V2) / f"kvtier-bench-{os.getpid()}"
    try:
        if not is_v1:
            (_V2 / "cgroup.subtree_control").write_text("+io")
        path.mkdir()
    except OSError as error:
        raise CannotRun(f"no control group for device bandwidth at {path}: {error.strerror}; run it as root") from error
    group = IoGroup(path, is_v1)
    try:
        yield group
    finally:
        group.remove()


def device_number(folder: Path) -> str:
    """`MAJOR:MINOR` of the block device that `folder` lies on."""
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"
