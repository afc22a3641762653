from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.store.nvme.bench import Bench


@pytest.fixture
def bench(arena: Path, tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "device"
    folder.mkdir()
    made = Bench(arena, folder)
    yield made
    made.close()
