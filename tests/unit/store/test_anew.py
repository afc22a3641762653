"""A device that comes once its pool is in use: the store starts itself anew, soon at first, then ever more seldom."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from kvtier_agent.control import SetPools
from kvtier_agent.store import main
from kvtier_agent.store.anew import Anew
from kvtier_client.protocol.messages import Reach

from tests.unit.client.real_store import free_port
from tests.unit.store.process import POOL, StoreProcess, grant, wait_for
from tests.unit.store.rawclient import chain, data_of, hashes_of


def test_store_starts_anew_once_what_it_waits_for_has_settled() -> None:
    anew = Anew(0, 1000.0)
    assert not anew.is_due(False, 1050.0)
    assert not anew.is_due(True, 1060.0)
    assert not anew.is_due(True, 1064.0)
    assert anew.is_due(True, 1065.0)
    assert not anew.is_due(False, 1066.0)
    assert not anew.is_due(True, 1067.0), "it settles anew"


@pytest.mark.parametrize(("before", "pause_s"), [(0, 30.0), (1, 60.0), (4, 480.0)])
def test_starts_in_a_row_come_ever_more_seldom(before: int, pause_s: float) -> None:
    anew = Anew(before, 1000.0)
    assert not anew.is_due(True, 1001.0)
    assert not anew.is_due(True, 999.0 + pause_s)
    assert anew.is_due(True, 1000.0 + pause_s)
    assert anew.count() == before + 1


def test_what_did_not_help_is_not_tried_for_ever() -> None:
    anew = Anew(5, 1000.0)
    assert not any(anew.is_due(True, 1000.0 + second) for second in range(100_000))


def test_store_that_was_well_for_long_begins_another_row() -> None:
    anew = Anew(5, 1000.0)
    assert not anew.is_due(False, 4600.0)
    assert not anew.is_due(True, 4601.0)
    assert anew.is_due(True, 4606.0)
    assert anew.count() == 1


def test_next_image_is_handed_the_pools_and_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: None)
    monkeypatch.delenv(main._VARIABLE, raising=False)
    assert main._take_over() == main._HandedOn(0, None)
    handed_on = main._HandedOn(3, SetPools(7, (grant(),), drain=True))
    main._start_anew(handed_on)
    assert main._take_over() == handed_on
    assert main._VARIABLE not in os.environ, "children do not get it"


def test_store_starts_itself_anew_for_a_device_that_came_too_late(store: StoreProcess) -> None:
    """The same process with the same memory: what is in DRAM stays, and a signal ends it as before."""
    on_nvme, in_dram = chain("a", 20), chain("b", 20)
    with store.connect() as client:
        assert client.put(None, on_nvme, reach=Reach.FLUSHED).reached == Reach.FLUSHED
    assert store.terminate() == 0
    shutil.rmtree(store.arena / POOL)
    away = store.nvme.rename(store.nvme.with_name("away"))
    store.program = (str(Path(store.program[0]).with_name("kvtier-store")), "--config")
    store.attendant = ()
    store.config["http"] = {"port": free_port()}
    store.start()
    with store.connect() as client:
        assert client.put(None, in_dram).reached == Reach.DRAM
    assert store.process is not None
    away.rename(store.nvme)
    wait_for("it starts itself anew", lambda: "event=store.starting_anew" in store.log_text())
    wait_for("it serves", store.serves)
    with store.connect() as client:
        assert client.lookup(hashes_of(in_dram)).dram_blocks == 20
        assert client.read_all(hashes_of(on_nvme)) == data_of(on_nvme)
    assert store.process.poll() is None
    assert "event=task.failed" not in store.log_text()
    assert store.terminate() == 0
