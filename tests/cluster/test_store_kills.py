"""kill -9 of the store in its pod, while a client in another pod has its promises (tests/chaos has the ledger)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kvtier_client.client import Client

from tests.chaos.ledger import Ledger, Verdict
from tests.chaos.readback import read_all
from tests.chaos.writer import Writer, make_pages, put
from tests.cluster.installation import Installation

KILLS = 5
CLIENT_POD = "store-kills"


@pytest.fixture
def client_socket(installation: Installation) -> Iterator[Path]:
    yield installation.client_pod(CLIENT_POD)
    installation.delete_pod(CLIENT_POD)


def read_back(socket: Path, ledger: Ledger) -> Verdict:
    with closing(Client(socket)) as client:
        return read_all(client, ledger)


def test_store_killed_five_times_in_its_pod_keeps_its_promises(installation: Installation, client_socket: Path) -> None:
    rng = random.Random(5)
    ledger = Ledger()
    writer = Writer(client_socket, ledger, random.Random(rng.random()))
    with closing(writer):
        for kill in range(KILLS):
            writer.start()
            assert writer.wait_begun(rng.randint(4, 12), deadline_s=60.0), f"before kill {kill + 1}: puts are not taken"
            time.sleep(rng.uniform(0, 0.01))
            installation.kill_store()
            unfinished = writer.join()
            assert unfinished is not None, "the killed store took every put"
            with closing(Client(client_socket)) as other:
                assert put(other, ledger, unfinished, make_pages(unfinished)), "what was half done cannot be stored"
            verdict = read_back(client_socket, ledger)
            assert (verdict.lost_dram, verdict.lost_flushed, verdict.wrong) == (set(), set(), [])
            assert verdict.served >= ledger.promised_pages() > 0
