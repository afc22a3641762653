"""get in place: the call alone, on a quiet store, and while puts, the cleaner and recovery run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kvtier_client.client import Client

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.load import Job, Load
from kvtier_bench.memory import MIB
from kvtier_bench.stats import Timings
from kvtier_bench.store import PoolSpec, Store, StoreSpec
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGES: Final = 64
CHAINS: Final = 8
PAGE_BYTES: Final = MIB
PAUSE_S: Final = 0.005
"""Between calls while the store is busy: a reader that never rests would starve what it is to be measured beside."""
BUSY_PAGE_BYTES: Final = 64 << 10
BUSY_CHAIN: Final = 64


def run(context: Context) -> Iterator[Figure]:
    """Measure one pool while another one is worked on."""
    busy_nvme = context.scaled(2048, 256) * MIB
    context.need_disk(3 * busy_nvme // 2)
    quiet = PoolSpec("main", 2 * CHAINS * PAGES * PAGE_BYTES // 2 + 128 * MIB)
    busy = PoolSpec("busy", 256 * MIB, busy_nvme)
    store = context.store(StoreSpec((quiet, busy), (context.disk / "media",)))
    payloads = Payloads(PAGE_BYTES)
    with store:
        store.start()
        store.wait_ready()
        with store.client() as client:
            _hold_all(client, payloads)
            calls, releases = measure(client, payloads, context.scaled(2000, 200), 0.0)
            yield Figure("get_call_us_p50", "get in place, 64 pages of 1 MiB, the call", calls.p50 * 1e6, "us")
            yield Figure("get_call_us_p99", "the same, slowest of a hundred", calls.p99 * 1e6, "us")
            yield Figure("release_us_p50", "giving them back", releases.p50 * 1e6, "us")
        _fill(context, store, busy)
        store.kill()
        store.start()  # recovers what the busy pool has on nvme
        store.wait_ready(["main"])
        jobs = [Job(str(store.socket("busy")), BUSY_PAGE_BYTES, BUSY_CHAIN, 0.0, 0, seed) for seed in range(1)]
        with Load(jobs, context.disk / "load.log") as load, store.client() as client:
            calls, _ = measure(client, payloads, context.scaled(3000, 300), PAUSE_S)
            tallies = load.stop()
        stored = sum(tally.put_pages for tally in tallies) * BUSY_PAGE_BYTES / 1e9
        beside = f"a client put {stored:.1f} GB into a full pool meanwhile"
        yield Figure(
            "get_call_busy_us_p99", "get in place, store busy, slowest of a hundred", calls.p99 * 1e6, "us", beside
        )
        yield Figure("get_call_busy_us_p50", "the same, median", calls.p50 * 1e6, "us", beside)


def measure(client: Client, payloads: Payloads, calls: int, pause_s: float) -> tuple[Timings, Timings]:
    """Seconds of each get and of each release.

    Raises CannotRun when a page is missing or wrong.
    """
    chains = [chain_hashes(chain, PAGES) for chain in range(CHAINS)]
    took, released = [], []
    for number in range(calls + CHAINS):
        hashes = chains[number % CHAINS]
        began = time.perf_counter()
        held = client.get(LAYOUT, hashes)
        got = time.perf_counter()
        if held.blocks != PAGES:
            raise CannotRun(f"only {held.blocks} of {PAGES} pages were there; misses: {dict(client.misses)}")
        if number < CHAINS and payloads.wrong(hashes, held.views):
            raise CannotRun("a page has other bytes than were put")
        before = time.perf_counter()
        held.release()
        after = time.perf_counter()
        if number >= CHAINS:
            took.append(got - began)
            released.append(after - before)
        time.sleep(pause_s)
    return Timings(tuple(took)), Timings(tuple(released))


def _hold_all(client: Client, payloads: Payloads) -> None:
    """Put every chain, once more where pages were evicted meanwhile."""
    chains = [chain_hashes(chain, PAGES) for chain in range(CHAINS)]
    for _ in range(3):
        for hashes in chains:
            client.put(LAYOUT, None, payloads.pages(hashes))
        if all(client.lookup(LAYOUT, hashes).dram_blocks == PAGES for hashes in chains):
            return


def _fill(context: Context, store: Store, busy: PoolSpec) -> None:
    """Fill the busy pool's nvme, so that every further put makes the cleaner work."""
    payloads = Payloads(BUSY_PAGE_BYTES)
    chains = busy.nvme_bytes // (BUSY_CHAIN * BUSY_PAGE_BYTES)
    context.say(f"  filling {busy.nvme_bytes >> 20} MiB of nvme")
    with store.client("busy") as client:
        for chain in range(chains):
            client.put(LAYOUT, None, payloads.pages(chain_hashes(10_000 + chain, BUSY_CHAIN)))


SCENARIO: Final = Scenario(
    "get",
    "get in place, quiet and busy",
    ("get_call_us_p50", "get_call_us_p99", "release_us_p50", "get_call_busy_us_p99", "get_call_busy_us_p50"),
    run,
)
