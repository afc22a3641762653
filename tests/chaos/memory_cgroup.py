"""A memory cgroup like a pod's: a limit on the pod, a group for each container, charges that outlive containers.

Pages of a tmpfs are charged to whoever touched them first, and stay charged to the pod when the container is gone.
Works on cgroup v1 and v2; needs root.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Final

REMOVAL_DEADLINE_S: Final = 60.0
"""An attendant ends when its store has, but on a busy machine it takes long to notice."""


class CgroupUnavailable(Exception):
    """This machine cannot limit memory; the message says what is missing."""


class PodMemory:
    """A pod's memory limit. A context manager: leaving it ends what still runs inside and removes it."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        """Make the group.

        Raises CgroupUnavailable.
        """
        version, home = _memory_hierarchy()
        self.limit_bytes = limit_bytes
        self._path = home / name
        self._events = "memory.oom_control" if version == 1 else "memory.events"
        self._peak = self._path / ("memory.max_usage_in_bytes" if version == 1 else "memory.peak")
        self._containers = 0
        self._past_oom_kills = 0
        try:
            if version == 2:
                (home / "cgroup.subtree_control").write_text("+memory")
            self._path.mkdir()
            if version == 2:
                (self._path / "cgroup.subtree_control").write_text("+memory")
            (self._path / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(limit_bytes))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.rmdir()
            raise CgroupUnavailable(f"cannot make a memory cgroup in {home}: {error.strerror}") from error

    def __enter__(self) -> PodMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove_pod(self._path)

    def new_container(self) -> Path:
        """A group for the next start; write a process id into its `cgroup.procs`."""
        self._containers += 1
        container = self._path / f"container-{self._containers}"
        container.mkdir()
        return container

    def members(self, container: Path) -> list[int]:
        """The processes that run in it."""
        return _members(container)

    def kill_container(self, container: Path) -> None:
        """kill -9 of all that runs in it; does not wait."""
        _kill_members(container)

    def remove_container(self, container: Path) -> None:
        """Wait until its last process is gone, then remove it.

        Raises TimeoutError, naming the processes that do not end.
        """
        self._past_oom_kills += self._oom_kills_in(container)
        _remove_empty(container)

    def oom_kills(self) -> int:
        """Processes that the kernel killed for this limit since the start."""
        running = self._path.glob("container-*")
        return self._past_oom_kills + sum(self._oom_kills_in(container) for container in running)

    def peak_bytes(self) -> int:
        """The most that was charged at once."""
        return int(self._peak.read_text())

    def _oom_kills_in(self, container: Path) -> int:
        lines = (container / self._events).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def remove_remains(prefix: str) -> None:
    """Remove the groups of runs that were killed: those called PREFIX-PID-anything whose process is gone."""
    with contextlib.suppress(CgroupUnavailable):
        for pod in _memory_hierarchy()[1].glob(f"{prefix}-*"):
            if not Path("/proc", pod.name.removeprefix(f"{prefix}-").partition("-")[0]).exists():
                _remove_pod(pod)


def _remove_pod(pod: Path) -> None:
    """End what runs in the pod's containers, and remove all groups."""
    for container in pod.glob("container-*"):
        _kill_members(container)
        _remove_empty(container)
    pod.rmdir()


def _remove_empty(container: Path) -> None:
    """Wait until the last process is gone, then remove the group. Raises TimeoutError."""
    deadline = time.monotonic() + REMOVAL_DEADLINE_S
    while True:
        try:
            return container.rmdir()
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{container} is still in use by {_members(container)}") from error
            time.sleep(0.02)


def _kill_members(container: Path) -> None:
    for pid in _members(container):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _members(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def _memory_hierarchy() -> tuple[int, Path]:
    """The version, and where groups can be made: below our own group (v1), at the top (v2)."""
    if os.geteuid() != 0:
        raise CgroupUnavailable("a memory cgroup needs root")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, point, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            own = next(
                line.split(":", 2)[2].lstrip("/")
                for line in Path("/proc/self/cgroup").read_text().splitlines()
                if "memory" in line.split(":")[1].split(",")
            )
            home = Path(point) / own
            return 1, home if home.is_dir() else Path(point)
    for _, point, kind, *_ in mounts:
        if kind == "cgroup2" and "memory" in (Path(point) / "cgroup.controllers").read_text().split():
            return 2, Path(point)
    raise CgroupUnavailable("no cgroup hierarchy with the memory controller is mounted")
