"""The mounts that make a directory tree of its own for a node.

A node sees this machine's files, except where Kubernetes writes: there it has its own. No mount point is ever made on
the machine itself, so nothing is left there.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from dev.cluster.layout import NodeLayout

# The kubelet sets these for the whole machine at start; a node finds them set and leaves the machine alone.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
# Directories in which mount points are needed: each becomes a tmpfs with the machine's entries bound into it.
OPENED = ("/run", "/mnt", "/var/lib")
FRESH = ("/run/containerd", "/run/kvtier", "/run/netns", "/run/runc", "/var/lib/cni")

OPEN = """
open_directory() {
  mkdir -p "$2"
  mount -t tmpfs -o mode=755 tmpfs "$2"
  for entry in "$1"/* "$1"/.[!.]*; do
    copy="$2/${entry##*/}"
    if [ -L "$entry" ]; then cp -P "$entry" "$copy"
    elif [ -d "$entry" ]; then mkdir "$copy"; mount --rbind "$entry" "$copy"
    elif [ -e "$entry" ]; then : > "$copy"; mount --bind "$entry" "$copy"
    fi
  done
  mount --move "$2" "$1"
}
"""


def script(node: NodeLayout, disks: tuple[str, ...]) -> str:
    """The shell script that lays out the mount namespace of `node`; run it inside, once."""
    stage = node.folder / "stage"
    bound = {
        node.folder / "kubelet": "/var/lib/kubelet",
        node.folder / "containerd": "/var/lib/containerd",
        node.folder / "log": "/var/log",
        **{node.disk(name): f"/mnt/{name}" for name in disks},
    }
    lines = ["set -eu", OPEN, "mount --make-rslave /", "mount -t proc proc /proc"]
    lines += [f"open_directory {path} {_quoted(stage)}" for path in OPENED]
    lines += [f"mkdir -p {path} && mount -t tmpfs -o mode=755 tmpfs {path}" for path in FRESH]
    lines += [f"mkdir -p {target} && mount --bind {_quoted(source)} {target}" for source, target in bound.items()]
    for key in KUBELET_SYSCTLS:
        value, place = _quoted(sysctl_file(node, key)), f"/proc/sys/{key}"
        lines.append(f"if [ -e {place} ]; then mount --bind {value} {place}; fi")
    lines.append("mount --make-rshared /")
    return "\n".join(lines) + "\n"


def prepare(node: NodeLayout, disks: tuple[str, ...]) -> None:
    """Make the folders and files that the script mounts."""
    for folder in ("kubelet", "containerd", "log", "stage"):
        (node.folder / folder).mkdir(parents=True, exist_ok=True)
    for name in disks:
        node.disk(name).mkdir(parents=True, exist_ok=True)
    for key, value in KUBELET_SYSCTLS.items():
        file = sysctl_file(node, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")


def sysctl_file(node: NodeLayout, key: str) -> Path:
    """The file whose text the node reads as the sysctl `key`."""
    return node.folder / "sysctls" / key.replace("/", ".")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
