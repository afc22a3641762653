"""The Python packages of an image: what the lock file names, and the project itself, each in a folder of its own."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Collection
from pathlib import Path

from dev.cluster.layout import REPOSITORY
from dev.cluster.preflight import MachineLacks
from dev.cluster.processes import run
from dev.images import cache

INSTALL_S = 600
NATIVE = "kvtier_index"
NATIVE_FOLDER = REPOSITORY / "agent/native"
NATIVE_SOURCES = ("src", "Cargo.toml", "Cargo.lock", "pyproject.toml", "kvtier_index.pyi")
"""What the native package is built from; the folder also has cargo's output."""
LAUNCHER = """#!/usr/bin/env python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def uv() -> str:
    """The uv program. Raises MachineLacks."""
    found = shutil.which("uv") or shutil.which("uv", path=str(REPOSITORY / ".tools/bin"))
    if found is None:
        raise MachineLacks("uv is missing: install it with: make .tools/bin/uv")
    return found


def requirements(extra: str) -> str:
    """What the lock file says `extra` needs, with hashes. Raises CommandFailed."""
    options = ["--frozen", f"--extra={extra}", "--no-dev", "--no-emit-local", "--no-header", "--no-annotate"]
    return run([uv(), "export", "--quiet", "--directory", str(REPOSITORY), *options])


def dependencies(extra: str, python: str) -> Path:
    """A folder with the packages that `extra` needs, for that minor version of Python. Raises CommandFailed."""
    needed = requirements(extra)
    folder = cache.folder() / f"dependencies-{extra}-{cache.key(needed, python)}"
    if not folder.exists():
        partial = folder.with_suffix(f".{os.getpid()}")
        listed = partial.with_suffix(".txt")
        listed.write_text(needed)
        # Only wheels: what is compiled on this machine need not fit the image.
        options = ["--only-binary=:all:", "--require-hashes", f"--requirements={listed}"]
        install(partial, python, *options)
        listed.unlink()
        partial.rename(folder)
    return folder


def project(folder: Path, python: str, packages: Collection[str]) -> None:
    """Install those packages of the project, without what they need, into `folder`. Raises CommandFailed."""
    install(folder, python, "--no-deps", "--reinstall-package=kvtier", str(REPOSITORY))
    if NATIVE in packages:
        # Compiled on this machine, which fits the image: its base is of the same release.
        install(folder, python, "--no-deps", "--reinstall-package=kvtier-index", str(NATIVE_FOLDER))
    for installed in folder.iterdir():
        if installed.name not in packages and installed.suffix != ".dist-info":
            shutil.rmtree(installed)


def install(folder: Path, python: str, *what: str) -> None:
    """Install packages into `folder`, without the scripts, which would name this machine's Python."""
    options = ["--target", str(folder), "--python-version", python, "--link-mode", "copy", "--quiet"]
    run([uv(), "pip", "install", *options, *what], timeout_s=INSTALL_S)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)


def launchers(folder: Path) -> None:
    """Write the project's console scripts into `folder`."""
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in scripts.items():
        module, function = entry.split(":")
        script = folder / name
        script.write_text(LAUNCHER.format(module=module, function=function))
        script.chmod(0o755)
