"""The folders are layers; only the packages in them can be imported."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_operator_is_the_standard_library_also_from_the_repository() -> None:
    """Looked up anew, with the repository first on the path."""
    look_up = (
        "import sys; from importlib.machinery import PathFinder; "
        f"print(PathFinder.find_spec('operator', [{str(REPOSITORY)!r}, *sys.path]).origin)"
    )
    found = subprocess.run([sys.executable, "-c", look_up], capture_output=True, text=True, check=True, timeout=60)
    assert Path(found.stdout.strip()).parent == Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize("layer", ["operator", "agent", "crds"])
def test_layer_is_no_package(layer: str) -> None:
    assert not list((REPOSITORY / layer).glob("*.py"))
