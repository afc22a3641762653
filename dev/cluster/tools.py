"""The programs of a Kubernetes control plane and node, found or built once.

Each program is looked for in KUBEBUILDER_ASSETS, then on PATH (only one that reports the pinned
minor version), then in a per-user cache keyed by the pinned modules. What is missing is built there from
`dev/cluster/tools/go.mod`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MODULE = Path(__file__).parent / "tools"
PROGRESS_S = 30.0
BUILD_S = 3600.0
GO_INSTALL = "install Go 1.26 or newer (https://go.dev/doc/install) and put it on PATH"


class ToolsMissing(Exception):
    """A program is neither present nor buildable; the message says what to install."""


@dataclass(frozen=True)
class Program:
    """One program: its name and the main package it is built from."""

    name: str
    package: str


PROGRAMS = (
    Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program("etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("helm", "helm.sh/helm/v4/cmd/helm"),
)


def pinned_version(module: str) -> str:
    """The version of `module` that go.mod requires, such as `v1.37.2`."""
    text = (MODULE / "go.mod").read_text()
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", text, re.M)
    if not found:
        raise ToolsMissing(f"{MODULE / 'go.mod'} requires no {module}")
    return found.group(1)


def linker_flags(kubernetes: str, helm: str) -> str:
    """Version stamps: without them kubectl and helm cannot parse the server's version."""
    major, minor, _ = kubernetes.lstrip("v").split(".", 2)
    stamps = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = ["-s", "-w", f"-X helm.sh/helm/v4/internal/version.version={helm}"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in stamps.items()]
    return " ".join(flags)


def cache_root() -> Path:
    """The per-user folder under which everything built once is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvtier"


def cache_bin() -> Path:
    """The cache folder of exactly these pinned versions."""
    digest = hashlib.sha256()
    for part in ("go.mod", "go.sum"):
        digest.update((MODULE / part).read_bytes())
    return cache_root() / "tools" / f"{pinned_version('k8s.io/kubernetes')}-{digest.hexdigest()[:12]}" / "bin"


def find_program(program: Program) -> Path | None:
    """Where `program` is already present, or None."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / program.name, os.X_OK):
        return Path(assets) / program.name
    cached = cache_bin() / program.name
    on_path = shutil.which(program.name)
    if on_path and (Path(on_path) == cached or reports_pinned_minor(program, on_path)):
        return Path(on_path)
    return cached if os.access(cached, os.X_OK) else None


def reports_pinned_minor(program: Program, path: str) -> bool:
    """Whether the program at `path` is of the pinned minor version (another would not fit the rest)."""
    module = {"etcd": "go.etcd.io/etcd/server/v3", "helm": "helm.sh/helm/v4"}.get(program.name, "k8s.io/kubernetes")
    wanted = pinned_version(module).rsplit(".", 1)[0]
    command = {"kubectl": ["version", "--client"], "helm": ["version", "--short"]}.get(program.name, ["--version"])
    try:
        shown = subprocess.run([path, *command], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return f"{wanted.lstrip('v')}." in shown.stdout


def ensure_programs() -> dict[str, Path]:
    """Every program by name, building what is missing with a line of progress for each.

    Raises ToolsMissing when something must be built and Go is absent, or when a build fails.
    """
    found = {p.name: find_program(p) for p in PROGRAMS}
    missing = [p for p in PROGRAMS if found[p.name] is None]
    if missing:
        if shutil.which("go") is None:
            names = ", ".join(p.name for p in missing)
            raise ToolsMissing(f"go is missing, and {names} must be built once: {GO_INSTALL}")
        cache_bin().mkdir(parents=True, exist_ok=True)
        print(f"building {len(missing)} programs once into {cache_bin()} (about 15 minutes on 2 cores)", flush=True)
        with (cache_bin() / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for number, program in enumerate(missing, 1):
                # Another process may have built it while this one waited.
                found[program.name] = find_program(program) or build_program(program, f"[{number}/{len(missing)}]")
    return {name: path for name, path in found.items() if path is not None}


def build_program(program: Program, label: str) -> Path:
    """Build one program into the cache, atomically, and return its path."""
    target = cache_bin() / program.name
    partial = target.with_suffix(".partial")
    flags = linker_flags(pinned_version("k8s.io/kubernetes"), pinned_version("helm.sh/helm/v4"))
    command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(partial), program.package]
    started = time.monotonic()
    print(f"  {label} {program.name} ...", flush=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    with subprocess.Popen(command, cwd=MODULE, env=environment, stderr=subprocess.PIPE, text=True) as build:
        try:
            errors = wait_showing(build, f"  {label} {program.name}", started)
        except BaseException:
            build.terminate()  # go ends its compilers
            raise
    if build.returncode:
        raise ToolsMissing(f"go build {program.package} failed:\n{errors.strip()[-2000:]}")
    partial.rename(target)
    print(f"  {label} {program.name} built in {time.monotonic() - started:.0f} s", flush=True)
    return target


def wait_showing(build: subprocess.Popen[str], label: str, started: float) -> str:
    """What `build` says on its error output, with a line on how long it has taken every half minute."""
    while True:
        try:
            return build.communicate(timeout=PROGRESS_S)[1]
        except subprocess.TimeoutExpired:
            taken_s = time.monotonic() - started
            if taken_s > BUILD_S:
                raise ToolsMissing(f"{label.strip()}: not built within {BUILD_S / 60:.0f} minutes") from None
            print(f"{label} ... {taken_s:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        for tool, where in ensure_programs().items():
            print(f"{tool}: {where}")
    except ToolsMissing as error:
        sys.exit(str(error))
