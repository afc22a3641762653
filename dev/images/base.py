"""The base image: a minimal Debian (or relative) of the machine's own release, with Python, by debootstrap."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.processes import CommandFailed, run
from dev.images import cache
from dev.images.buildah import ALONE, Buildah

PACKAGES = ("python3",)
PROGRESS_S = 15.0
DEADLINE_S = 1200.0
DOCKERFILE = "FROM scratch\nADD base.tar /\n"
# What a container does not need: half of the size.
LEFT_OUT = (
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./tmp/*",
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
    "./usr/share/info/*",
)


@dataclass(frozen=True)
class Base:
    """The base image and the minor version of the Python within, such as 3.11."""

    reference: str
    python: str


def ensure_base(buildah: Buildah, say: Callable[[str], None]) -> Base:
    """The base image, bootstrapped when the cache has none for this release. Raises CommandFailed."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    key = cache.key(release, *PACKAGES, *LEFT_OUT, DOCKERFILE)
    tar, version = (cache.folder() / f"base-{release}-{key}.{kind}" for kind in ("tar", "python"))
    if not (tar.exists() and version.exists()):
        say(f"making the base image with debootstrap ({release}, once, one to three minutes)")
        bootstrap(release, tar, version, say)
    base = Base(f"kvtier.local/base:{release}-{key}", version.read_text())
    if not buildah.has(base.reference):
        with tempfile.TemporaryDirectory(dir=cache.folder()) as folder:
            context = Path(folder)
            (context / "Dockerfile").write_text(DOCKERFILE)
            (context / "base.tar").hardlink_to(tar)
            buildah.build(base.reference, context / "Dockerfile", context)
    return base


def bootstrap(release: str, tar: Path, version: Path, say: Callable[[str], None]) -> None:
    """Write the base's files to `tar`, and the version of its Python to `version`. Raises CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="base-", dir=cache.folder()) as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(root)]
        _run_with_progress([*ALONE, *command, *mirror(release)], Path(folder) / "log", say)
        ask = "import sys; print('%d.%d' % sys.version_info[:2], end='')"
        version.write_text(run([*ALONE, "chroot", str(root), "python3", "-c", ask]))
        partial = tar.with_suffix(".partial")
        left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        run(["tar", "--numeric-owner", *left_out, "-cf", str(partial), "-C", str(root), "."], timeout_s=300)
        partial.rename(tar)


def mirror(release: str) -> list[str]:
    """The address from which apt gets the release's main packages, as debootstrap's argument; none if unknown."""
    if shutil.which("apt-get") is None:
        return []
    columns = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = run(["apt-get", "indextargets", f"--format={columns}", "Created-By: Packages"]).splitlines()
    fitting = (line.split() for line in lines)
    return next(([uri] for uri, suite, component in fitting if (suite, component) == (release, "main")), [])


def _run_with_progress(command: list[str], log: Path, say: Callable[[str], None]) -> None:
    """Run `command`, showing its last line now and then. Raises CommandFailed."""
    end = time.monotonic() + DEADLINE_S
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while process.poll() is None:
                try:
                    process.wait(PROGRESS_S)
                except subprocess.TimeoutExpired:
                    say(f"  {(log.read_text().splitlines() or ['...'])[-1]}")
                if time.monotonic() > end:
                    raise CommandFailed(command, f"no end within {DEADLINE_S:.0f} s", log.read_text())
        finally:
            process.kill()
    if process.returncode:
        raise CommandFailed(command, f"exit status {process.returncode}", log.read_text())
