"""A limit on what processes read from and write to a block device: the kernel's own, cgroup v1 or v2. Needs root."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .place import FaultsUnavailable

_PREFIX: Final = "kvtier-faults"
_REMOVAL_S: Final = 30.0


class Throttle:
    """A group of processes with limits. A context manager: those left in it go back to the parent group."""

    def __init__(self, name: str) -> None:
        """Raises FaultsUnavailable."""
        self._version, home = _hierarchy()
        self._group = home / f"{_PREFIX}-{os.getpid()}-{name}"
        _remove_remains(home)

    def __enter__(self) -> Self:
        if self._version == 2:
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.subtree_control").write_text("+io")
        try:
            self._group.mkdir()
        except OSError as error:
            raise FaultsUnavailable(f"cannot make {self._group}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove_group(self._group)

    @property
    def procs(self) -> Path:
        """Write a process id here to put it under the limits; its threads and later children come along."""
        return self._group / "cgroup.procs"

    def limit(self, device: Path, *, read_bps: int | None = None, write_bps: int | None = None) -> None:
        """Bytes per second from now on; None: as fast as it goes. `device` is a whole disk, or a file on one."""
        numbers = disk_numbers(device)
        if self._version == 2:
            limits = f"rbps={_or_max(read_bps)} wbps={_or_max(write_bps)}"
            (self._group / "io.max").write_text(f"{numbers} {limits}")
            return
        for kind, limit in (("read", read_bps), ("write", write_bps)):
            (self._group / f"blkio.throttle.{kind}_bps_device").write_text(f"{numbers} {limit or 0}")


def disk_numbers(path: Path) -> str:
    """`major:minor` of the whole disk that a device node is, or that a file lies on."""
    stat = path.stat()
    number = stat.st_rdev or stat.st_dev
    block = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}").resolve()
    disk = block.parent if (block / "partition").exists() else block
    return (disk / "dev").read_text().strip()


def _or_max(limit: int | None) -> str:
    return "max" if limit is None else str(limit)


def _hierarchy() -> tuple[int, Path]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, point, kind, options, *_ in mounts:
        if kind == "cgroup" and "blkio" in options.split(","):
            return 1, Path(point)
    for _, point, kind, *_ in mounts:
        if kind == "cgroup2" and "io" in (Path(point) / "cgroup.controllers").read_text().split():
            return 2, Path(point)
    raise FaultsUnavailable("no cgroup hierarchy with the blkio or io controller is mounted")


def _remove_remains(home: Path) -> None:
    """Remove the groups of processes that are gone."""
    for group in home.glob(f"{_PREFIX}-*"):
        if not Path("/proc", group.name.split("-")[2]).exists():
            _remove_group(group)


def _remove_group(group: Path) -> None:
    """Move its processes to the parent group and remove it. Raises TimeoutError."""
    deadline = time.monotonic() + _REMOVAL_S
    while group.exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{group} cannot be removed") from error
            time.sleep(0.02)
