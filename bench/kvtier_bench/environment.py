"""What the bench compares with: peers in an environment of their own, and programs of the distribution.

None of it is part of the project's environment, so that tests need none of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvtier_bench.figures import CannotRun

PEERS: Final = {
    "mooncake": ("mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy>=2"),
    "redis": ("redis[hiredis]==8.1.0", "numpy>=2"),
    "lmcache": ("lmcache==0.5.6",),
}
"""What is installed for each, in an environment of its own; LMCache's has torch with its CUDA libraries (5 GB)."""
INSTALL_S: Final = 900
_NO_SERVICES: Final = Path("/usr/sbin/policy-rc.d")


def cache_folder() -> Path:
    """Where the peers' environments are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "kvtier" / "bench-peers"


def peer_python(cache: Path, peer: str) -> Path:
    """The interpreter that has this peer; made at the first call, in up to a few minutes.

    Raises CannotRun.
    """
    folder = cache / peer
    wanted = "\n".join(PEERS[peer])
    stamp, python = folder / "packages", folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted and python.exists()):
        uv = shutil.which("uv") or str(Path(__file__).parents[2] / ".tools/bin/uv")
        _run(uv, "venv", "--quiet", "--clear", "--python", "3.11", str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), *PEERS[peer])
        stamp.write_text(wanted)
    return python


def program(name: str, package: str) -> str:
    """The program's path; Debian's package is installed when it is missing, without starting its service.

    Raises CannotRun.
    """
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        found = shutil.which(name)
    if found is None:
        raise CannotRun(f"{name} is missing: apt-get install {package}")
    return found


def versions(cache: Path) -> dict[str, str]:
    """Versions of the peers and programs that are there."""
    found = {}
    for name, command in {"fio": ["fio", "--version"], "redis-server": ["redis-server", "--version"]}.items():
        with suppress(OSError, subprocess.SubprocessError):
            found[name] = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    for metadata in cache.glob("*/lib/python*/site-packages/*.dist-info"):
        name, _, version = metadata.name.removesuffix(".dist-info").partition("-")
        if name.startswith(("mooncake_transfer", "redis", "hiredis", "lmcache")):
            found[name] = version
    return found


def _install(package: str) -> None:
    guarded = not _NO_SERVICES.exists()
    if guarded:
        _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
        _NO_SERVICES.chmod(0o755)
    try:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    finally:
        if guarded:
            _NO_SERVICES.unlink()


def _run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=True)
    except subprocess.CalledProcessError as error:
        raise CannotRun(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"{' '.join(command)}: {error}") from error
