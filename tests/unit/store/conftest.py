from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.unit.store.process import StoreProcess
from tests.unit.store.rawclient import RawClient


class MakeStore(Protocol):
    def __call__(self, **config: Any) -> StoreProcess: ...


@pytest.fixture
def arena() -> Iterator[Path]:
    """A folder in memory."""
    path = Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_store(tmp_path: Path, arena: Path) -> Iterator[MakeStore]:
    """Makes the test's store, not started."""
    made: list[StoreProcess] = []

    def make(**config: Any) -> StoreProcess:
        made.append(StoreProcess(tmp_path, arena, **config))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: MakeStore) -> StoreProcess:
    """A store that serves one pool: 8 MiB of DRAM, 32 MiB of NVMe."""
    return make_store().start()


@pytest.fixture
def client(store: StoreProcess) -> Iterator[RawClient]:
    with store.connect() as connected:
        yield connected
