"""A scratch folder with a path short enough for a socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Like tmp_path, whose path leaves no room for a socket's name."""
    path = Path(tempfile.mkdtemp(prefix="kvtier-"))
    yield path
    shutil.rmtree(path)
