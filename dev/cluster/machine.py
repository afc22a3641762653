"""What this machine has that decides how a node is configured. Detected, never assumed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups

CAP_SYS_RESOURCE = 24
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "loopback", "host-local")


@dataclass(frozen=True)
class Machine:
    """What a node's configuration depends on."""

    cgroup_v2: bool
    can_lower_oom_scores: bool
    apparmor: bool
    snapshotter: str
    cni_folder: Path


def detect(folder: Path) -> Machine:
    """The facts of this machine, for a cluster that keeps its files in `folder`."""
    return Machine(
        cgroup_v2=cgroups.is_v2(),
        can_lower_oom_scores=has_capability(Path("/proc/self/status").read_text(), CAP_SYS_RESOURCE),
        apparmor=Path("/sys/kernel/security/apparmor").is_dir(),
        snapshotter="overlayfs" if overlay_works(folder) else "native",
        cni_folder=cni_folder() or CNI_FOLDERS[0],
    )


def has_capability(status: str, number: int) -> bool:
    """Whether the effective set in the text of a /proc/PID/status has capability `number`."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields["CapEff"].strip(), 16) >> number & 1)


def cni_folder() -> Path | None:
    """The folder that has the CNI plugins which the pod network needs, or None."""
    return next((f for f in CNI_FOLDERS if all((f / name).exists() for name in CNI_PLUGINS)), None)


def overlay_works(folder: Path) -> bool:
    """Whether the file system of `folder` can carry an overlay, tried in a mount namespace that goes away."""
    trial = folder / "overlay-trial"
    for part in ("lower", "upper", "work", "merged"):
        (trial / part).mkdir(parents=True, exist_ok=True)
    options = ",".join(
        f"{option}={trial / part}"
        for option, part in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work"))
    )
    command = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")]
    tried = subprocess.run(command, capture_output=True, timeout=30)
    subprocess.run(["rm", "-rf", str(trial)], check=True, timeout=30)
    return tried.returncode == 0
