"""What kvtier takes of a node's memory, from the kernel's own figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvtier_crds.names import ARENA_MOUNT

from dev.cluster import Node, cgroups


@dataclass(frozen=True)
class Footprint:
    """Bytes at one moment."""

    arena: int
    """Of the file system that arenas lie on."""
    pods: int
    """Shared and anonymous memory that is charged to all pods of the node together, ended ones included."""


def footprint(node: Node) -> Footprint:
    """What the node's arenas and pods take now."""
    space = os.statvfs(Path("/proc", str(node.holder), "root", ARENA_MOUNT.lstrip("/")))
    return Footprint((space.f_blocks - space.f_bfree) * space.f_frsize, _pods_bytes(node))


def _pods_bytes(node: Node) -> int:
    hierarchy = cgroups.ROOT if cgroups.is_v2() else cgroups.ROOT / "memory"
    lines = (hierarchy / node.layout.cgroup / "kubepods" / "memory.stat").read_text().splitlines()
    figures = {name: int(value) for name, value in (line.split() for line in lines)}
    wanted = ("anon", "shmem") if cgroups.is_v2() else ("total_rss", "total_shmem")
    return sum(figures[name] for name in wanted)
