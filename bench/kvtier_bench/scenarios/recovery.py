"""Recovery of a million pages from nvme after kill -9, a tenth of them in segments that were never sealed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.filling import CHAIN_BLOCKS, PAGE_BYTES, fill_blocks
from kvtier_bench.memory import MIB
from kvtier_bench.store import Store, drop_page_cache, one_pool
from kvtier_bench.unseal import unseal
from kvtier_bench.workload import LAYOUT, chain_hashes

BLOCKS: Final = 1 << 20
LONGEST_S: Final = 300.0


def run(context: Context) -> Iterator[Figure]:
    """Fill, kill, discard what is in memory, and wait until every key answers; then the same after a clean end."""
    blocks = context.scaled(BLOCKS, BLOCKS >> 4)
    nvme_bytes = blocks * PAGE_BYTES * 3 // 2 + 1024 * MIB
    context.need_disk(nvme_bytes)
    media = context.disk / "media"
    with context.store(one_pool(512 * MIB, nvme_bytes, (media,))) as store:
        store.start()
        store.wait_ready()
        with store.client() as client:
            fill_blocks(client, blocks, context.say)
        store.wait_quiet()
        began = time.monotonic()
        store.kill()
        killing_s = time.monotonic() - began
        unsealed = unseal(media, 0.1)
        seconds = killing_s + _answer_again(context, store, blocks)
        beside = f"{unsealed}; page cache dropped, arena discarded"
        yield Figure("recovery_1m_s", f"kill -9 to {blocks:,} answering keys of 4 KiB", seconds, "s", beside)
        began = time.monotonic()
        store.stop()
        context.say(f"  a clean end took {time.monotonic() - began:.1f} s")
        clean = _answer_again(context, store, blocks)
        yield Figure(
            "recovery_1m_clean_s", "the same after a clean end", clean, "s", "page cache dropped, arena discarded"
        )


def _answer_again(context: Context, store: Store, blocks: int) -> float:
    """Seconds from an empty memory until every key has been found.

    Raises CannotRun when keys are missing after LONGEST_S.
    """
    began = time.monotonic()
    store.empty_arena()
    if not drop_page_cache():
        context.say("  the page cache cannot be dropped: run as root")
    store.start()
    store.wait_ready()
    with store.client() as client:
        for chain in range(blocks // CHAIN_BLOCKS):
            hashes = chain_hashes(chain, CHAIN_BLOCKS)
            while client.lookup(LAYOUT, hashes).whole_blocks != CHAIN_BLOCKS:
                if time.monotonic() - began > LONGEST_S:
                    found = client.lookup(LAYOUT, hashes).whole_blocks
                    raise CannotRun(f"chain {chain} has {found} of {CHAIN_BLOCKS} blocks after {LONGEST_S:.0f} s")
                time.sleep(0.1)
    return time.monotonic() - began


SCENARIO: Final = Scenario(
    "recovery", "of a million pages, after kill -9", ("recovery_1m_s", "recovery_1m_clean_s"), run
)
