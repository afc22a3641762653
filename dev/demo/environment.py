"""The engine's Python environment (torch, transformers): a folder that the demo's pods mount read-only.

It is too large for an image (5 GB). Made once for each lock file in the per-user cache, of hard links
into uv's cache, so that it takes no space of its own where the project's environment was installed before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from dev.cluster.layout import REPOSITORY
from dev.cluster.tools import cache_root
from dev.images import cache, python_packages
from dev.images.base import ensure_base
from dev.images.buildah import Buildah

INSTALL_DEADLINE_S = 1800.0
PROGRESS_EVERY_S = 15.0


class EnvironmentUnavailable(Exception):
    """The environment could not be made; the message says which command failed and how."""


def environment_folder(lock: bytes, python: str) -> Path:
    """Where the environment of the lock file with this content lies, or will lie."""
    return cache_root() / f"engine-{cache.key(lock, python)}"


def image_python() -> str:
    """The minor version of the images' Python, such as 3.11."""
    with cache.locked():
        return ensure_base(Buildah(), print).python


def ensure_environment(python: str) -> Path:
    """The environment's folder for that minor version of Python, made first when it is not there.

    Takes half a minute when uv's cache has the packages (bytecode is compiled, since pods cannot write
    it), and their download before that when it has not. Raises EnvironmentUnavailable.
    """
    folder = environment_folder((REPOSITORY / "uv.lock").read_bytes(), python)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_suffix(f".partial-{os.getpid()}")
    try:
        _install(partial, python)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _install(target: Path, python: str) -> None:
    uv = python_packages.uv()
    requirements = target.with_name(f"{target.name}.txt")
    exported = [uv, "export", "--frozen", "--extra", "transformers", "--no-dev", "--no-emit-project", "--quiet"]
    installed = [uv, "pip", "install", "--quiet", "--target", str(target), "--requirements", str(requirements)]
    installed += ["--python-version", python, "--link-mode", "hardlink", "--compile-bytecode"]
    try:
        _run([*exported, "--output-file", str(requirements)], "listing the engine's packages")
        _run(installed, f"installing the engine's environment for the pods, once, into {target.parent}")
    finally:
        requirements.unlink(missing_ok=True)


def _run(command: list[str], what: str) -> None:
    """Run with a line of progress now and then."""
    print(f"  {what} ...", flush=True)
    started = time.monotonic()
    with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, umask=0o022) as process:
        try:
            errors = _finish(process, lambda: print(f"  {what} ... {time.monotonic() - started:.0f} s", flush=True))
        finally:
            process.kill()
    if process.returncode:
        raise EnvironmentUnavailable(f"`{' '.join(command)}` failed: {errors.strip()[-1000:]}")


def _finish(process: subprocess.Popen[str], report: Callable[[], None]) -> str:
    """What the process says on stderr until it ends, which is INSTALL_DEADLINE_S from now at most."""
    end = time.monotonic() + INSTALL_DEADLINE_S
    while True:
        try:
            return process.communicate(timeout=PROGRESS_EVERY_S)[1]
        except subprocess.TimeoutExpired:
            report()
            if time.monotonic() > end:
                process.kill()
