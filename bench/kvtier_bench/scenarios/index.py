"""Memory of the index for each block: the store's processes with and without millions of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import Figure
from kvtier_bench.filling import CHAIN_BLOCKS, PAGE_BYTES, fill_blocks
from kvtier_bench.memory import MIB
from kvtier_bench.store import one_pool, running

BLOCKS: Final = 5_000_000 // CHAIN_BLOCKS * CHAIN_BLOCKS
WARM: Final = 20 * CHAIN_BLOCKS
"""Blocks before the first measurement, so that buffers that are made once do not count."""


def run(context: Context) -> Iterator[Figure]:
    """Fill to five million blocks; memory is that of all processes, without the arena."""
    blocks = context.scaled(BLOCKS, 100 * CHAIN_BLOCKS)
    nvme_bytes = blocks * PAGE_BYTES * 5 // 4 + 1024 * MIB
    context.need_disk(nvme_bytes)
    with running(context.store(one_pool(512 * MIB, nvme_bytes, (context.disk / "media",)))) as store:
        with store.client() as client:
            fill_blocks(client, WARM, context.say)
            store.wait_quiet()
            before = store.memory_bytes()
            fill_blocks(client, blocks, context.say, WARM)
            store.wait_quiet()
            after = store.memory_bytes()
        added = blocks - WARM
        beside = f"{before / MIB:,.0f} MiB at {WARM:,} blocks, {after / MIB:,.0f} MiB at {blocks:,}"
        yield Figure("index_bytes_per_block", "memory of the index for a block", (after - before) / added, "B", beside)


SCENARIO: Final = Scenario("index", "memory at five million blocks", ("index_bytes_per_block",), run)
