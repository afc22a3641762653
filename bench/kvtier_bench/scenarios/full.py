"""A store that has been nearly full for long: conversations grow until ten times its capacity was written.

Its hits are held against its policy simulated in memory at the same capacity; the chains that are left must lie as well
as those of a store that never was full, at as little rewriting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from kvtier_bench.context import Context, Scenario
from kvtier_bench.conversations import BLOCKS_PER_TURN, TURNS, Conversations, Request
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.memory import MIB
from kvtier_bench.replay.policies import Cache
from kvtier_bench.scenarios.restore import timed_get
from kvtier_bench.store import Store, one_pool
from kvtier_bench.tracing import pieces, reads_of, traced
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGE_BYTES: Final = 64 << 10
CHAIN_BLOCKS: Final = TURNS * BLOCKS_PER_TURN
WRITTEN: Final = 10
"""Times the capacity."""
FULL: Final = 0.95
TRACED: Final = 12
CLEANER_S: Final = 300.0
SIMULATED: Final = {"default": "full_hits_vs_simulated", "lru": "full_hits_vs_simulated_lru"}
"""The store's own policy, and the plain one."""


class Run:
    """What the store and the simulation have made of the requests."""

    def __init__(self, capacity_blocks: int) -> None:
        self.asked = self.hit = self.stored = 0
        self.simulated = {policy: Cache(policy, int(capacity_blocks * FULL)) for policy in SIMULATED}
        self.simulated_hit = dict.fromkeys(SIMULATED, 0)
        self.latest: dict[int, int] = {}
        """Blocks of each conversation, the latest last."""

    def request(self, client: Client, payloads: Payloads, request: Request) -> None:
        """Look the prompt up, restore what is there, store the rest.

        Raises CannotRun when a put stores nothing.
        """
        conversation, blocks = request
        hashes = chain_hashes(conversation, CHAIN_BLOCKS)[:blocks]
        for policy, cache in self.simulated.items():
            self.simulated_hit[policy] += cache.request(hashes, time.time())
        with client.get(LAYOUT, hashes) as held:
            hit = held.blocks
        self.asked, self.hit = self.asked + blocks, self.hit + hit
        if hit < blocks:
            parent = hashes[hit - 1] if hit else None
            stored = client.put(LAYOUT, parent, payloads.pages(hashes[hit:]), reach=Reach.DRAM)
            if stored.reached is None and not stored.stored_pages and client.misses:
                raise CannotRun(f"a put stored nothing; misses: {dict(client.misses)}")
            self.stored += stored.stored_pages
        self.latest.pop(conversation, None)
        self.latest[conversation] = blocks


def run(context: Context) -> Iterator[Figure]:
    """Converse until ten times the capacity is written, wait for the cleaner, look at what is left."""
    capacity = context.scaled(1024, 256) * MIB
    context.need_disk(3 * capacity // 2)
    payloads = Payloads(PAGE_BYTES)
    done = Run(capacity // PAGE_BYTES)
    with context.store(one_pool(capacity // 8, capacity, (context.disk / "media",))) as store:
        store.start()
        store.wait_ready()
        before = store.io().write_bytes
        with store.client() as client:
            _converse(context, client, payloads, done, WRITTEN * capacity // PAGE_BYTES)
            context.say("  waiting for the cleaner")
            store.wait_quiet(quiet_s=5.0, longest_s=CLEANER_S)
            written = store.io().write_bytes - before
        stored = done.stored * PAGE_BYTES
        beside = f"{written / MIB:,.0f} MiB written for {stored / MIB:,.0f} MiB, capacity {capacity / MIB:,.0f} MiB"
        yield Figure("full_write_amplification", "full store: bytes written", written / stored, "x", beside)
        yield from _hits(done)
        store.restart_cold()
        with store.client() as client:
            yield _runs(context, store, client, payloads, done.latest)


def _converse(context: Context, client: Client, payloads: Payloads, done: Run, until_pages: int) -> None:
    requests = Conversations()
    told = 0
    while done.stored < until_pages:
        done.request(client, payloads, requests.next())
        if done.stored - told > until_pages // 5:
            told = done.stored
            context.say(f"  {done.stored * PAGE_BYTES / MIB:,.0f} MiB stored, hits {done.hit / done.asked:.3f}")


def _hits(done: Run) -> Iterator[Figure]:
    hits = done.hit / done.asked
    for policy, key in SIMULATED.items():
        simulated = done.simulated_hit[policy] / done.asked
        beside = f"{hits:.3f} and {simulated:.3f} in memory at {FULL:.0%} of the capacity"
        yield Figure(key, f"full store: hits, against `{policy}` simulated", hits / simulated, "x", beside)


def _runs(context: Context, store: Store, client: Client, payloads: Payloads, latest: dict[int, int]) -> Figure:
    """Gapless parts of the device for 16 MiB, of the longest of the conversations that were used last."""
    recent = list(latest.items())[-8 * TRACED :]
    log = context.disk / "reads.trace"
    parts = blocks = wrong = 0
    for conversation, length in sorted(recent, key=lambda item: -item[1])[:TRACED]:
        hashes = chain_hashes(conversation, CHAIN_BLOCKS)[:length]
        hashes = hashes[: client.lookup(LAYOUT, hashes).whole_blocks]
        if hashes:
            with traced(store, log):
                timed_get(client, hashes)
            parts += pieces(reads_of(log, context.disk))
            blocks += len(hashes)
            with client.get(LAYOUT, hashes) as held:
                wrong += payloads.wrong(hashes[: held.blocks], held.views)
    if wrong:
        raise CannotRun(f"{wrong} pages had other bytes than were put")
    size = blocks * PAGE_BYTES / (16 * MIB)
    value = parts / size if parts else None
    what = "full store: gapless parts of the device for 16 MiB of chain"
    beside = f"{TRACED} chains, {size * 16:.0f} MiB"
    return Figure("full_runs_per_16mib", what, value, "", beside, "no chain was left on nvme, or strace saw no read")


SCENARIO: Final = Scenario(
    "full",
    "nearly full, ten times the capacity written",
    ("full_write_amplification", "full_hits_vs_simulated", "full_hits_vs_simulated_lru", "full_runs_per_16mib"),
    run,
)
