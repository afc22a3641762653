"""get in place: the call alone, on a quiet store, and while puts, the cleaner and recovery run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from kvtier_client.client import Client
from kvtier_client.protocol.messages import Get, GetReply, HashList
from kvtier_client.protocol.places import PLACE

from kvtier_bench.context import Context, Scenario
from kvtier_bench.echo import Echo
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.filling import put_chain
from kvtier_bench.load import Job, Load
from kvtier_bench.memory import MIB
from kvtier_bench.stats import Timings
from kvtier_bench.store import PoolSpec, Store, StoreSpec
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGES: Final = 64
CHAINS: Final = 8
PAGE_BYTES: Final = MIB
CHAIN_HASHES: Final = [chain_hashes(chain, PAGES) for chain in range(CHAINS)]
PAUSE_S: Final = 0.005
"""Between calls while the store is busy: a reader that never rests would starve what it is to be measured beside."""
BUSY_PAGE_BYTES: Final = 16 << 10
BUSY_CHAIN: Final = 128
RESTARTS: Final = 4
"""Recovery is over soon: so often is it measured in."""


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
            measured = measure(client, payloads, context.scaled(2000, 200), 0.0)
            calls, echo = measured.calls, measured.echo
            beside = f"the same bytes there and back over a socket {echo.p50 * 1e6:.0f} us"
            yield Figure("get_call_us_p50", "get in place, 64 pages of 1 MiB, the call", calls.p50 * 1e6, "us", beside)
            beside = f"over a socket {echo.p99 * 1e6:.0f} us"
            yield Figure("get_call_us_p99", "the same, slowest of a hundred", calls.p99 * 1e6, "us", beside)
            yield Figure("release_us_p50", "giving them back", measured.releases.p50 * 1e6, "us")
        _fill(context, store, busy)
        calls, echo, stored = _measure_busy(context, store, payloads)
        beside = f"{RESTARTS} recoveries; a client put {stored / 1e9:.1f} GB into a full pool meanwhile; "
        beside += f"over a socket, beside the same, {echo.p99 * 1e6:.0f} us (median {echo.p50 * 1e6:.0f})"
        yield Figure(
            "get_call_busy_us_p99", "get in place, store busy, slowest of a hundred", calls.p99 * 1e6, "us", beside
        )
        yield Figure("get_call_busy_us_p50", "the same, median", calls.p50 * 1e6, "us", beside)


class Measured(NamedTuple):
    """In turns."""

    calls: Timings
    releases: Timings
    echo: Timings
    """As many bytes to another process and back."""


def measure(client: Client, payloads: Payloads, calls: int, pause_s: float) -> Measured:
    """Seconds of each get and of each release.

    Raises CannotRun when a page is missing or wrong.
    """
    took: list[float] = []
    released: list[float] = []
    echoed: list[float] = []
    reply = GetReply(1, PAGES, bytes(PAGES * PLACE.size), 1, 1)
    request = Get(1, LAYOUT, HashList.of(CHAIN_HASHES[0]), 1)
    with Echo(request, len(msgspec.msgpack.encode(reply))) as echo:
        for number in range(calls + CHAINS):
            hashes = CHAIN_HASHES[number % CHAINS]
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
            time.sleep(pause_s)
            if number >= CHAINS:
                took.append(got - began)
                released.append(after - before)
                echoed.append(echo.seconds())
    return Measured(Timings(tuple(took)), Timings(tuple(released)), Timings(tuple(echoed)))


def _measure_busy(context: Context, store: Store, payloads: Payloads) -> tuple[Timings, Timings, int]:
    """Gets right after each of several kills, while the other pool is recovered and stored into; bytes stored."""
    calls: list[float] = []
    echoed: list[float] = []
    stored = 0
    for restart in range(RESTARTS):
        store.kill()
        store.start()
        store.wait_ready(["main"])
        job = Job(str(store.socket("busy")), BUSY_PAGE_BYTES, BUSY_CHAIN, 0.0, 0, restart)
        with Load([job], context.disk / "load.log") as load, store.client() as client:
            _hold_all(client, payloads)
            measured = measure(client, payloads, context.scaled(800, 80), PAUSE_S)
            calls += measured.calls.seconds
            echoed += measured.echo.seconds
            stored += sum(tally.put_pages for tally in load.stop()) * BUSY_PAGE_BYTES
    return Timings(tuple(calls)), Timings(tuple(echoed)), stored


def _hold_all(client: Client, payloads: Payloads) -> None:
    """Put every chain, where it is not there; once more where pages were evicted meanwhile."""
    for _ in range(3):
        missing = [hashes for hashes in CHAIN_HASHES if client.lookup(LAYOUT, hashes).dram_blocks < PAGES]
        for hashes in missing:
            client.put(LAYOUT, None, payloads.pages(hashes))


def _fill(context: Context, store: Store, busy: PoolSpec) -> None:
    """Fill the busy pool's nvme, so that every further put makes the cleaner work. Raises CannotRun."""
    payloads = Payloads(BUSY_PAGE_BYTES)
    chains = busy.nvme_bytes // (BUSY_CHAIN * BUSY_PAGE_BYTES)
    context.say(f"  filling {busy.nvme_bytes >> 20} MiB of nvme")
    with store.client("busy") as client:
        for chain in range(chains):
            put_chain(client, payloads, chain_hashes(10_000 + chain, BUSY_CHAIN))


SCENARIO: Final = Scenario(
    "get",
    "get in place, quiet and busy",
    ("get_call_us_p50", "get_call_us_p99", "release_us_p50", "get_call_busy_us_p99", "get_call_busy_us_p50"),
    run,
)
