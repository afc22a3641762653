"""The cluster's cgroups, on cgroup v1 and v2: made, filled, killed and removed by name.

Everything that a cluster runs is in one subtree, so that it can be found and ended whoever started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KILL_S = 30.0
NEEDED = ("cpu", "cpuset", "memory", "pids")
"""The controllers without which no kubelet starts."""


class CgroupBusy(Exception):
    """A cgroup still has processes after they were killed; the message names them."""


def is_v2() -> bool:
    """Whether the machine has the unified hierarchy alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The mount point of every hierarchy, each once (v1 names some twice, and may have one of v2 beside it)."""
    if is_v2():
        return [ROOT]
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = {Path(fields[1]).resolve() for fields in mounts if fields[2] in ("cgroup", "cgroup2")}
    return sorted(found)


def missing_controllers() -> list[str]:
    """Which of the needed controllers this machine does not offer."""
    if is_v2():
        offered = set((ROOT / "cgroup.controllers").read_text().split())
    else:
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        offered = {option for fields in mounts if fields[2] == "cgroup" for option in fields[3].split(",")}
    return [controller for controller in NEEDED if controller not in offered]


def create(cgroup: str) -> None:
    """Make `cgroup` and its parents in every hierarchy, ready to take processes or children."""
    for hierarchy in hierarchies():
        folder = hierarchy
        for part in Path(cgroup).parts:
            if is_v2():
                _delegate(folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
            _inherit_cpuset(folder)


def _delegate(folder: Path) -> None:
    """Let the children of `folder` use every controller that it has itself (v2)."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        # A controller that cannot be delegated (cpu with real-time processes, say) is not needed to run pods.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit_cpuset(folder: Path) -> None:
    """A new cpuset of v1 is empty and takes no process: give it its parent's."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own, parent = folder / name, folder.parent / name
        if not is_v2() and own.exists() and not own.read_text().strip():
            own.write_text(parent.read_text())


def entries(cgroup: str) -> list[Path]:
    """The files that a process writes `0` to in order to enter `cgroup`."""
    return [hierarchy / cgroup / "cgroup.procs" for hierarchy in hierarchies()]


def processes(cgroup: str) -> set[int]:
    """The IDs of all processes in `cgroup` and below."""
    found: set[int] = set()
    for folder in _folders(cgroup):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return found - {0}


def _folders(cgroup: str) -> Iterator[Path]:
    """Every folder of the subtree in every hierarchy, children before parents."""
    for hierarchy in hierarchies():
        for path, _, _ in os.walk(hierarchy / cgroup, topdown=False):
            yield Path(path)


def remove(cgroup: str) -> None:
    """Kill every process in `cgroup` and below, and remove the subtree. Does nothing when it is absent.

    Raises CgroupBusy when a process outlives SIGKILL by 30 seconds.
    """
    end = time.monotonic() + KILL_S
    delay_s = 0.01
    while not _try_remove(cgroup):
        if time.monotonic() > end:
            raise CgroupBusy(f"cgroup {cgroup} still has the processes {sorted(processes(cgroup))} after SIGKILL")
        time.sleep(delay_s)
        delay_s = min(delay_s * 2, 0.2)


def _try_remove(cgroup: str) -> bool:
    """Kill and remove once; whether nothing is left."""
    for process in processes(cgroup):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for folder in _folders(cgroup):
        _thaw(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not any((hierarchy / cgroup).exists() for hierarchy in hierarchies())


def _thaw(folder: Path) -> None:
    """A frozen cgroup of v1 keeps killed processes: a paused container would stay."""
    state = folder / "freezer.state"
    if state.exists():
        with contextlib.suppress(OSError):
            state.write_text("THAWED")
