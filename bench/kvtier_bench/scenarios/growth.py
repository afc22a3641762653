"""Chains that grow over many turns at once: how they come to lie on nvme, and what that costs.

64 chains grow in 32 turns that take turns, by 64 KiB pages; the DRAM quota is an eighth of the data. Once the store has
nothing left to write they are read back beside chains that were stored whole, and beside the same bytes shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.fio import Disk, Reading, lay_down
from kvtier_bench.memory import MIB
from kvtier_bench.scenarios.restore import store_flushed, timed_get
from kvtier_bench.stats import interleaved, median
from kvtier_bench.store import Store, one_pool
from kvtier_bench.tracing import pieces, reads_of, traced
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes, growth_turns

PAGE_BYTES: Final = 64 << 10
CHAINS: Final = 64
TURNS: Final = 32
WHOLE: Final = 1
"""The part of the seeds whose chains are stored whole."""
IN_FLIGHT: Final = 16 * MIB
SHUFFLED_BYTES: Final = 128 * MIB
SHUFFLED_EVERY: Final = 8
"""Chains for each time that shuffled pages are read."""
TRACED: Final = 16
"""Chains whose reads are looked at one by one."""
CLEANER_S: Final = 300.0


def run(context: Context) -> Iterator[Figure]:
    """Grow, wait for the cleaner, count, read."""
    blocks = context.scaled(256, 64)
    chain_bytes = blocks * PAGE_BYTES
    data = CHAINS * chain_bytes
    context.need_disk(6 * data)
    spec = one_pool(data // 8, 4 * data, (context.disk / "media",))
    payloads = Payloads(PAGE_BYTES)
    with context.store(spec) as store:
        store.start()
        store.wait_ready()
        with store.client() as client:
            before = store.io().write_bytes
            grow(client, payloads, blocks)
            context.say("  waiting for the cleaner")
            waited = store.wait_quiet(quiet_s=5.0, longest_s=CLEANER_S)
            written = store.io().write_bytes - before
        beside = (
            f"{written / MIB:,.0f} MiB written for {data / MIB:,.0f} MiB; the cleaner was done after {waited:.0f} s"
        )
        yield Figure("write_amplification", "chains grown in turns: bytes written", written / data, "x", beside)
        store.restart_cold()
        with store.client() as client:
            wrong = unreadable(client, payloads, blocks)
            yield Figure("grown_pages_lost", "grown pages that cannot be read, or differ", wrong, "pages")
            yield runs_figure(context, store, client, blocks, "runs_per_16mib")
            for chain in range(CHAINS):
                store_flushed(client, payloads, chain_hashes(chain, blocks, WHOLE))
            store.wait_quiet(longest_s=CLEANER_S)
        store.restart_cold()
        yield from _speeds(context, store, blocks)


def grow(client: Client, payloads: Payloads, blocks: int) -> None:
    """Store every chain, a piece at a time.

    Raises CannotRun when a put is not taken.
    """
    hashes = [chain_hashes(chain, blocks) for chain in range(CHAINS)]
    for chain, first, end in growth_turns(CHAINS, TURNS, blocks // TURNS):
        part = hashes[chain][first:end]
        parent = hashes[chain][first - 1] if first else None
        last = end == blocks
        stored = client.put(LAYOUT, parent, payloads.pages(part), reach=Reach.FLUSHED if last else Reach.DRAM)
        if stored.reached is None:
            raise CannotRun(f"turn {first}..{end} of chain {chain} was not stored; misses: {dict(client.misses)}")


def unreadable(client: Client, payloads: Payloads, blocks: int) -> int:
    """Pages of all grown chains that are missing or have other bytes."""
    wrong = 0
    for chain in range(CHAINS):
        hashes = chain_hashes(chain, blocks)
        with client.get(LAYOUT, hashes) as held:
            wrong += len(hashes) - held.blocks + payloads.wrong(hashes[: held.blocks], held.views)
    return wrong


def runs_figure(context: Context, store: Store, client: Client, blocks: int, key: str) -> Figure:
    """Into how many gapless parts of the device the reads of a chain fall, for 16 MiB of it."""
    log = context.disk / "reads.trace"
    parts = requests = 0
    for chain in range(TRACED):
        with traced(store, log):
            timed_get(client, chain_hashes(chain, blocks))
        reads = reads_of(log, context.disk)
        parts, requests = parts + pieces(reads), requests + len(reads)
    chains_16mib = TRACED * blocks * PAGE_BYTES / (16 * MIB)
    beside = f"{requests / chains_16mib:.1f} requests of the store for 16 MiB"
    what = "chains grown in turns: gapless parts of the device for 16 MiB"
    return Figure(key, what, parts / chains_16mib if parts else None, "", beside, "strace saw no read of the media")


def _speeds(context: Context, store: Store, blocks: int) -> Iterator[Figure]:
    chain_bytes = blocks * PAGE_BYTES
    disk = Disk()
    file = context.disk / "plain"
    lay_down(file, SHUFFLED_BYTES)
    shuffled = Reading(PAGE_BYTES, IN_FLIGHT // PAGE_BYTES, shuffled=True)
    plain: list[float] = []

    def read_whole(chain: int) -> float:
        if chain % SHUFFLED_EVERY == 0:
            plain.append(disk.read(file, shuffled))
        return timed_get(client, chain_hashes(chain, blocks, WHOLE))

    with store.client() as client:
        taken = interleaved(
            {"grown": lambda chain: timed_get(client, chain_hashes(chain, blocks)), "whole": read_whole}, CHAINS
        )
    grown, whole = (taken[name].gb_per_s(chain_bytes) for name in ("grown", "whole"))
    beside = f"{grown:.2f} and {whole:.2f} GB/s"
    yield Figure(
        "grown_vs_contiguous", "restore of a grown chain, against one stored whole", grown / whole, "x", beside
    )
    pages = SHUFFLED_BYTES / median(plain) / 1e9
    what = "restore of a chain stored whole, against its pages shuffled"
    beside = f"{whole:.2f} GB/s; {disk.name} {shuffled}: {pages:.2f} GB/s"
    yield Figure("contiguous_vs_shuffled", what, whole / pages, "x", beside)


SCENARIO: Final = Scenario(
    "growth",
    "64 chains grown in 32 turns",
    ("write_amplification", "grown_pages_lost", "runs_per_16mib", "grown_vs_contiguous", "contiguous_vs_shuffled"),
    run,
)
