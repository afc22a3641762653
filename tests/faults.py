"""Fixtures of tests whose devices fail on demand. A test folder has them by importing them into its conftest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.faults.device import FaultyFolder
from dev.faults.place import FaultsUnavailable, open_place


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is removed with all that is mounted in it."""
    try:
        opened = open_place()
        with opened as folder:
            yield folder
    except FaultsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def device(place: Path) -> Iterator[FaultyFolder]:
    """A folder whose file does as it is told."""
    with FaultyFolder(place) as folder:
        yield folder
