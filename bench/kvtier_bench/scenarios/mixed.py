"""Mixed load: 1 to 8 clients that read and store at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import Figure
from kvtier_bench.filling import put_chain
from kvtier_bench.load import Job, Load, Tally
from kvtier_bench.memory import MIB
from kvtier_bench.stats import percentile
from kvtier_bench.store import one_pool, running
from kvtier_bench.workload import Payloads, chain_hashes

PAGE_BYTES: Final = MIB
CHAIN_PAGES: Final = 16
CHAINS: Final = 32
CLIENTS: Final = (1, 2, 4, 8)
READ_SHARE: Final = 0.9


def run(context: Context) -> Iterator[Figure]:
    """Nine calls of ten read 16 MiB by get_into, the tenth puts as much into a pool that is full."""
    seconds = context.scaled(10, 3)
    quota = 2 * CHAINS * CHAIN_PAGES * PAGE_BYTES
    context.need_disk(4 * quota)
    context.need_memory(2 * quota)
    payloads = Payloads(PAGE_BYTES)
    with running(context.store(one_pool(quota, 2 * quota, (context.disk / "media",)))) as store:
        with store.client() as client:
            for chain in range(CHAINS):
                put_chain(client, payloads, chain_hashes(chain, CHAIN_PAGES))
        for clients in CLIENTS:
            path = str(store.socket())
            jobs = [Job(path, PAGE_BYTES, CHAIN_PAGES, READ_SHARE, CHAINS, seed) for seed in range(clients)]
            with Load(jobs, context.disk / "load.log") as load:
                began = time.monotonic()
                time.sleep(seconds)
                tallies = load.stop()
                taken = time.monotonic() - began
            got, put = (sum(pages) * PAGE_BYTES / taken / 1e9 for pages in _pages(tallies))
            gets = [call for tally in tallies for call in tally.get_s]
            hits = sum(tally.got_pages for tally in tallies) / max(1, sum(tally.asked_pages for tally in tallies))
            wrong = sum(tally.wrong_pages for tally in tallies)
            beside = f"put {put:.2f} GB/s; get_into of 16 MiB p99 {percentile(gets, 99) * 1e3:.0f} ms; hits {hits:.2f}"
            beside += f"; {wrong} pages were wrong" if wrong else ""
            yield Figure(f"mixed_{clients}_gb_s", f"mixed load, {clients} clients: read", got, "GB/s", beside)


def _pages(tallies: list[Tally]) -> tuple[list[int], list[int]]:
    return [tally.got_pages for tally in tallies], [tally.put_pages for tally in tallies]


SCENARIO: Final = Scenario(
    "mixed", "1 to 8 clients read and store", tuple(f"mixed_{clients}_gb_s" for clients in CLIENTS), run
)
