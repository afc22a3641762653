"""Runs a function in a mount namespace of its own, so that a test's mounts end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def can_unshare() -> bool:
    """Whether this machine lets the tests make a mount namespace."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=20).returncode == 0


WITH_MOUNTS = pytest.mark.skipif(not can_unshare(), reason="no mount namespace: needs root, CAP_SYS_ADMIN and unshare")


def in_mount_namespace(function: Callable[[Path], None], path: Path) -> None:
    """Run a module-level function of a test module with `path`. Fails with what it wrote."""
    call = f"from {function.__module__} import {function.__name__} as body"
    code = f"import sys, pathlib; {call}; body(pathlib.Path(sys.argv[1]))"
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
