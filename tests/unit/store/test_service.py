"""The service's own rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kvtier_agent.config import ArenaConfig, Bytes, StoreConfig
from kvtier_agent.store import service
from kvtier_agent.store.anew import Anew
from kvtier_agent.store.errors import IndexBroken
from kvtier_agent.store.service import Service
from kvtier_agent.store.store import Store

from tests.unit.store.process import NO_ATTENDANT

WAIT_S = 60.0


@pytest.fixture
def made(arena: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service without pools, whose upkeep is due at once."""
    for name in ("stay_prompt", "tidy"):  # they are for a process of its own
        monkeypatch.setattr(service, name, lambda: None)
    monkeypatch.setattr(service, "_UPKEEP_S", 0.0)
    config = StoreConfig(arena=ArenaConfig(path=str(arena), capacity=Bytes(8 << 20)), movers=1)
    return Service(config, tmp_path / "config.yaml", Anew(0, 0.0), attendant=NO_ATTENDANT)


async def test_upkeep_goes_on_after_a_round_that_failed(
    made: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stop, rounds = asyncio.Event(), 0

    async def keep_up(_: Store) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise ValueError("a defect")
        stop.set()

    monkeypatch.setattr(Store, "keep_up", keep_up)
    assert not await asyncio.wait_for(made.run(stop), WAIT_S)
    assert capfd.readouterr().err.count("event=upkeep.failed step=store") == 1


async def test_upkeep_that_meets_a_defect_of_the_index_ends_the_store(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep_up(_: Store) -> None:
        raise BaseException("a defect")

    monkeypatch.setattr(Store, "keep_up", keep_up)
    with pytest.raises(IndexBroken):
        await asyncio.wait_for(made.run(asyncio.Event()), WAIT_S)
