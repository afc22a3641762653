from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.faults import device, place
from tests.unit.store.nvme.bench import Bench
from tests.unit.store.nvme.rig import Rig

__all__ = ["device", "place"]


@pytest.fixture
def bench(arena: Path, tmp_path: Path) -> Iterator[Bench]:
    folder = tmp_path / "device"
    folder.mkdir()
    made = Bench(arena, folder)
    yield made
    made.close()


@pytest.fixture
async def rig(arena: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """One device of 256 MiB, DRAM of 32 MiB."""
    folder = tmp_path / "rig"
    folder.mkdir()
    made = Rig(arena, [folder])
    await made.start()
    yield made
    await made.kill()
