"""What a machine needs before a cluster can start; on a Debian-like system the missing packages are installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups, machine, tools
from dev.cluster.processes import search_path

INSTALL_S = 900
# Debian starts a service when its package is installed; only the programs are wanted here.
NO_SERVICES = "/usr/sbin/policy-rc.d"


class MachineLacks(Exception):
    """The machine cannot run a cluster; the message says what is missing and which command mends it."""


@dataclass(frozen=True)
class Requirement:
    """Something that must be present: what it is, whether it is, and Debian's package that has it."""

    what: str
    present: Callable[[], bool]
    package: str


def program(name: str, package: str) -> Requirement:
    """The requirement that program `name` is on PATH."""
    return Requirement(name, lambda: shutil.which(name, path=search_path()) is not None, package)


FOR_CLUSTER = (
    program("containerd", "containerd"),
    program("ctr", "containerd"),
    program("runc", "runc"),
    Requirement("CNI plugins", lambda: machine.cni_folder() is not None, "containernetworking-plugins"),
    program("nft", "nftables"),
    program("ip", "iproute2"),
    program("nsenter", "util-linux"),
    program("mount", "mount"),
)
FOR_IMAGES = (
    program("buildah", "buildah"),
    program("debootstrap", "debootstrap"),
    program("unshare", "util-linux"),
)


def missing(requirements: Iterable[Requirement]) -> list[Requirement]:
    """Those of `requirements` that are not met."""
    return [r for r in requirements if not r.present()]


def why_not() -> str | None:
    """Why this machine cannot run a cluster even after installing packages, in one line, or None."""
    if sys.platform != "linux":
        return f"Linux is missing: this is {platform.system()}; use a Linux machine or a virtual one"
    if os.geteuid() != 0:
        return f"root is missing: run it as root, for example: sudo {' '.join(sys.orig_argv)}"
    if absent := cgroups.missing_controllers():
        return f"cgroup controllers missing: {', '.join(absent)}; enable them in the kernel's command line or container"
    lacking = missing(FOR_CLUSTER + FOR_IMAGES)
    if lacking and shutil.which("apt-get") is None:
        names = ", ".join(r.what for r in lacking)
        packages = " ".join(sorted({r.package for r in lacking}))
        return f"{names} missing: install what Debian calls: apt-get install {packages}"
    unbuilt = [p.name for p in tools.PROGRAMS if tools.find_program(p) is None]
    if unbuilt and shutil.which("go") is None:
        return f"go is missing, and {', '.join(unbuilt)} must be built once: {tools.GO_INSTALL}"
    return None


def ensure(requirements: Iterable[Requirement], say: Callable[[str], None]) -> None:
    """Install what is missing of `requirements`. Raises MachineLacks when that cannot be done."""
    if reason := why_not():
        raise MachineLacks(reason)
    if lacking := missing(requirements):
        packages = sorted({r.package for r in lacking})
        say(f"installing {' '.join(packages)} with apt-get (missing: {', '.join(r.what for r in lacking)})")
        install(packages)
    if still := missing(requirements):
        raise MachineLacks(f"{', '.join(r.what for r in still)} missing although its package is installed; check PATH")


def install(packages: list[str]) -> None:
    """Install Debian packages without starting their services. Raises MachineLacks with apt's own words."""
    guard = Path(NO_SERVICES)
    placed = not guard.exists()
    if placed:
        guard.write_text("#!/bin/sh\nexit 101\n")
        guard.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
            command = ["apt-get", *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                raise MachineLacks(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    finally:
        if placed:
            guard.unlink()
