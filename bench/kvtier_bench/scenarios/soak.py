"""Soak: all tiers full, two clients, for half an hour. Memory and descriptors must not grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kvtier_bench import kernel
from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.filling import put_chain
from kvtier_bench.load import Job, Load
from kvtier_bench.memory import MIB
from kvtier_bench.stats import growth, percentile
from kvtier_bench.store import one_pool, running
from kvtier_bench.workload import Payloads, chain_hashes

PAGE_BYTES: Final = 256 << 10
CHAIN_PAGES: Final = 16
CHAIN_BYTES: Final = PAGE_BYTES * CHAIN_PAGES
PERIOD_S: Final = 10.0
"""Between samples; shorter in a short soak, so that there are LEAST_SAMPLES."""
LEAST_SAMPLES: Final = 16
SAY_EVERY_S: Final = 60.0


def run(context: Context) -> Iterator[Figure]:
    """Fill both tiers, then read and store, and look at the store's processes at even intervals."""
    dram, nvme = 256 * MIB, context.scaled(2048, 512) * MIB
    context.need_disk(2 * nvme)
    duration_s = context.options.soak_minutes * 60
    period_s = min(PERIOD_S, duration_s / LEAST_SAMPLES)
    with running(context.store(one_pool(dram, nvme, (context.disk / "media",)))) as store:
        payloads = Payloads(PAGE_BYTES)
        chains = nvme * 5 // 4 // CHAIN_BYTES
        with store.client() as client:
            for chain in range(chains):
                put_chain(client, payloads, chain_hashes(chain, CHAIN_PAGES))
        path = str(store.socket())
        jobs = [Job(path, PAGE_BYTES, CHAIN_PAGES, 0.8, chains, seed, pause_s=0.01, remember=True) for seed in range(2)]
        memory, descriptors = [], []
        with Load(jobs, context.disk / "load.log") as load:
            began = said = time.monotonic()
            while time.monotonic() - began < duration_s:
                time.sleep(period_s)
                memory.append(store.memory_bytes() / MIB)
                descriptors.append(float(kernel.read_descriptors(store.pids)))
                if time.monotonic() - said > SAY_EVERY_S:
                    said = time.monotonic()
                    context.say(f"  {memory[-1]:.1f} MiB, {descriptors[-1]:.0f} descriptors")
            tallies = load.stop()
    if wrong := sum(tally.wrong_pages for tally in tallies):
        raise CannotRun(f"{wrong} pages had other bytes than were put")
    gets = [seconds * 1e3 for tally in tallies for seconds in tally.get_s]
    puts = [seconds * 1e3 for tally in tallies for seconds in tally.put_s]
    span = f"{context.options.soak_minutes:g} minutes, 2 clients, both tiers full"
    yield Figure("soak_minutes", "soak: how long", context.options.soak_minutes, "min")
    yield Figure(
        "soak_rss_growth_mib",
        "soak: growth of memory",
        growth(memory),
        "MiB",
        f"{span}; {memory[-1]:.0f} MiB in the end",
    )
    yield Figure(
        "soak_fd_growth", "soak: growth of descriptors", growth(descriptors), "", f"{descriptors[-1]:.0f} in the end"
    )
    yield Figure("soak_get_ms_p99", "soak: get_into of 4 MiB, slowest of a hundred", percentile(gets, 99), "ms")
    yield Figure("soak_put_ms_p99", "soak: put of 4 MiB, slowest of a hundred", percentile(puts, 99), "ms")


SCENARIO: Final = Scenario(
    "soak",
    "memory and descriptors under load",
    ("soak_minutes", "soak_rss_growth_mib", "soak_fd_growth", "soak_get_ms_p99", "soak_put_ms_p99"),
    run,
)
