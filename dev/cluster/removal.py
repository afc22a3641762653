"""Removing a cluster, found by its folder and name alone.

Its namespaces, mounts, links and nft rules go with its processes, and these are all in its cgroup. Logs are kept.
"""

from __future__ import annotations

import contextlib
import shutil

from dev.cluster import cgroups
from dev.cluster.layout import Layout

KEEP = "keep"
"""What the process that started a cluster tells its watcher so that the cluster stays."""


def remove(layout: Layout) -> None:
    """Leave nothing of the cluster but its logs; nothing happens when there is none.

    Raises CgroupBusy when a process cannot be killed, OSError when a file cannot be removed.
    """
    cgroups.remove(layout.cgroup)
    if not layout.folder.exists():
        return
    for entry in layout.folder.iterdir():
        if entry == layout.logs:
            continue
        # Another process may be removing the same cluster.
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
