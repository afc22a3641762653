"""What a cluster could leave on the machine, looked for where each kind of thing would be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups
from dev.cluster.layout import Layout
from dev.faults.place import MEMORY, PREFIX

MADE_BY_KUBERNETES = ("/var/lib/kubelet", "/run/kvtier", "/mnt/nvme0", "/var/lib/cni", "/var/log/pods", "/run/netns")
MOUNTED_BY_TESTS = (str(MEMORY / PREFIX), str(Path(tempfile.gettempdir(), "pytest-of-")))
SET_BY_KUBELET = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


@dataclass(frozen=True)
class Surroundings:
    """The state of the machine itself that no cluster may change."""

    links: str
    rules: str
    mounts: tuple[str, ...]
    sysctls: tuple[str, ...]
    folders: tuple[bool, ...]


def surroundings() -> Surroundings:
    """The machine's links, nft rules, mounts, sysctls and system folders.

    Devices that other tests mount meanwhile are not the cluster's.
    """
    links = _printed("ip", "-brief", "link")
    values = tuple(Path("/proc/sys", key).read_text() for key in SET_BY_KUBELET)
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = tuple(line for line in lines if not line.split()[1].startswith(MOUNTED_BY_TESTS))
    folders = tuple(Path(path).exists() for path in MADE_BY_KUBERNETES)
    return Surroundings(links, _printed("nft", "list", "ruleset"), mounts, values, folders)


def remains(layout: Layout) -> list[str]:
    """Everything of that cluster which is still there, but for its logs."""
    found = [str(path) for h in cgroups.hierarchies() if (path := h / layout.cgroup).exists()]
    if layout.folder.exists():
        found += [str(path) for path in layout.folder.iterdir() if path != layout.logs]
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            found += [f"{process}: {kind}" for kind in _mentions(process, str(layout.folder))]
    return found


def _mentions(process: Path, folder: str) -> list[str]:
    """How a process has to do with the folder: in its command line, or in the mounts that it sees."""
    kinds = []
    for kind in ("cmdline", "mountinfo"):
        with contextlib.suppress(OSError):
            if folder in (process / kind).read_bytes().decode(errors="replace"):
                kinds.append(kind)
    return kinds


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
