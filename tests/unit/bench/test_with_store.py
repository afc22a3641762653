"""The bench's means, on a real store: what a scenario relies on, once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtier_bench.context import Context, Options, open_context
from kvtier_bench.load import Job, Load
from kvtier_bench.scenarios.restore import store_flushed, timed_get
from kvtier_bench.store import Store, one_pool
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

MIB = 1 << 20
PAGE_BYTES = 256 << 10
BLOCKS = 16
DISK = Path("/var/tmp")


@pytest.fixture
def context() -> Iterator[Context]:
    log = logging.getLogger("kvtier.client")
    before = log.level
    log.setLevel(logging.ERROR)
    with open_context(Options(DISK, quick=True), lambda _: None) as context:
        yield context
    log.setLevel(before)


@pytest.fixture
def store(context: Context) -> Iterator[Store]:
    with context.store(one_pool(64 * MIB, 256 * MIB, (context.disk / "media",))) as store:
        store.start()
        store.wait_ready()
        yield store


def test_store_restarted_cold_reads_from_its_device(store: Store) -> None:
    payloads, hashes = Payloads(PAGE_BYTES), chain_hashes(1, BLOCKS)
    with store.client() as client:
        store_flushed(client, payloads, hashes)
    assert store.io().write_bytes >= BLOCKS * PAGE_BYTES
    store.wait_quiet(quiet_s=0.5)
    store.restart_cold()
    with store.client() as client:
        assert client.lookup(LAYOUT, hashes).dram_blocks == 0
        assert timed_get(client, hashes) > 0
        assert client.lookup(LAYOUT, hashes).dram_blocks == BLOCKS
        with client.get(LAYOUT, hashes) as held:
            assert payloads.wrong(hashes, held.views) == 0
    assert store.io().read_bytes >= BLOCKS * PAGE_BYTES


def test_metrics_are_of_now_and_memory_excludes_the_arena(store: Store) -> None:
    def put(seed: int) -> None:
        client.put(LAYOUT, None, Payloads(PAGE_BYTES).pages(chain_hashes(seed, 160)), deadline_s=60.0)

    with store.client() as client:
        put(3)  # what the first writes to a device need is there from then on
        store.wait_quiet(quiet_s=0.5)
        before = store.memory_bytes()
        put(2)
    assert store.metrics()["kvtier_pages_stored_total"] == 2 * 160
    assert store.memory_bytes() - before < 20 * MIB


def test_clients_that_load_a_store_say_what_they_did(context: Context, store: Store) -> None:
    with store.client() as client:
        for seed in range(2):
            client.put(LAYOUT, None, Payloads(PAGE_BYTES).pages(chain_hashes(seed, BLOCKS)), deadline_s=60.0)
    jobs = [Job(str(store.socket()), PAGE_BYTES, BLOCKS, 0.5, 2, seed, remember=True) for seed in range(2)]
    with Load(jobs, context.disk / "load.log") as load, store.client() as client:
        deadline = time.monotonic() + 60
        while client.lookup(LAYOUT, chain_hashes(2_000_003, BLOCKS)).whole_blocks == 0:
            assert time.monotonic() < deadline, "the second client has not put its fourth chain"
            time.sleep(0.02)
        tallies = load.stop()
    assert all(tally.get_s and tally.put_s and tally.put_pages for tally in tallies)
    assert sum(tally.wrong_pages for tally in tallies) == 0
    assert sum(tally.got_pages for tally in tallies) > 0
