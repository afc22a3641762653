"""kill -9 of the store in its pod, while a client in another pod has its promises (tests/chaos has the ledger)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger
from tests.chaos.readback import read_back
from tests.chaos.workload import POOLS
from tests.chaos.writer import Nobody, Writer, make_pages, put
from tests.cluster.installation import Installation

KILLS = 5
CLIENT_POD = "store-kills"


@pytest.fixture
def clients(installation: Installation) -> Iterator[Clients]:
    socket = installation.client_pod(CLIENT_POD)
    with Clients({POOLS[0]: socket}) as clients:
        yield clients
    installation.delete_pod(CLIENT_POD)


def test_store_killed_five_times_in_its_pod_keeps_its_promises(installation: Installation, clients: Clients) -> None:
    rng = random.Random(5)
    ledger = Ledger()
    writer = Writer(clients, ledger, random.Random(rng.random()), Nobody())
    for kill in range(KILLS):
        writer.start()
        assert writer.wait_begun(rng.randint(4, 12), deadline_s=60.0), f"before kill {kill + 1}: puts are not taken"
        time.sleep(rng.uniform(0, 0.01))
        installation.kill_store()
        unfinished = writer.join()
        if unfinished is not None:  # else a deletion was under way
            assert put(clients, ledger, unfinished, make_pages(unfinished)), "what was half done cannot be stored"
        verdict = read_back(clients, ledger, ledger.stretches())
        assert (verdict.lost_dram, verdict.lost_flushed, verdict.wrong) == (set(), set(), [])
        assert verdict.served >= ledger.promised_pages() > 0
