"""What the demo reads off a store's metrics page."""

from __future__ import annotations

import socket

from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.metrics import SnapshotCollector
from prometheus_client import CollectorRegistry, generate_latest

from dev.demo.report import Reads
from dev.demo.store import parse_reads, reads_between
from tests.unit.serve.snapshots import pool, snapshot


def page(*counters: dict[str, int]) -> str:
    """The metrics page of a store with one pool for each of `counters`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        attendant = Attendant(theirs)
        pools = tuple(pool(uid=f"u{n}", name=f"p{n}", counters=counted) for n, counted in enumerate(counters))
        attendant.snapshot = snapshot(pools=pools)
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(attendant))
        return generate_latest(registry).decode()


def test_reads_of_all_pools_are_summed_by_tier() -> None:
    first = {"pages_read_dram": 3, "pages_read_nvme": 2, "bytes_read_nvme": 20, "bytes_read_nvme_direct": 30}
    assert parse_reads(page(first, {"pages_read_nvme": 5})) == Reads({"dram": 3, "nvme": 7}, 20, 30)


def test_store_that_read_nothing_has_read_nothing() -> None:
    assert parse_reads(page()) == Reads({"dram": 0, "nvme": 0}, 0, 0)


def test_difference_is_what_was_read_in_between() -> None:
    before, after = Reads({"dram": 3, "nvme": 7}, 20, 30), Reads({"dram": 10, "nvme": 8}, 25, 37)
    assert reads_between(before, after) == Reads({"dram": 7, "nvme": 1}, 5, 7)
