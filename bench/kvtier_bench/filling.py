"""Very many small blocks in a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from kvtier_bench.figures import CannotRun
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGE_BYTES: Final = 4096
CHAIN_BLOCKS: Final = 2048
_SAY_EVERY_S: Final = 20.0
_LONGEST_S: Final = 1800.0
_ATTEMPTS: Final = 3
_PUT_S: Final = 30.0


def fill_blocks(client: Client, blocks: int, say: Callable[[str], None], first: int = 0) -> None:
    """Put whole chains of 4 KiB blocks, their seeds from `first / CHAIN_BLOCKS` on, until there are `blocks` of them.

    Returns when all are on nvme. Raises CannotRun when the store takes one not.
    """
    payloads = Payloads(PAGE_BYTES)
    began = said = time.monotonic()
    chains = range(first // CHAIN_BLOCKS, blocks // CHAIN_BLOCKS)
    for chain in chains:
        reach = Reach.FLUSHED if chain == chains[-1] else Reach.DRAM
        put_chain(client, payloads, chain_hashes(chain, CHAIN_BLOCKS), reach)
        if time.monotonic() - began > _LONGEST_S:
            raise CannotRun(f"{(chain + 1) * CHAIN_BLOCKS:,} of {blocks:,} blocks were stored in {_LONGEST_S:.0f} s")
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            done = (chain + 1) * CHAIN_BLOCKS
            say(f"  {done:,} of {blocks:,} blocks, {(done - first) / (said - began):,.0f} a second")


def put_chain(client: Client, payloads: Payloads, hashes: Sequence[bytes], reach: Reach = Reach.DRAM) -> None:
    """Put a chain; what a busy store did not take is put again.

    Raises CannotRun when it still does not take it.
    """
    for attempt in range(_ATTEMPTS):
        stored = client.put(LAYOUT, None, payloads.pages(hashes), reach=reach, deadline_s=_PUT_S)
        if stored.reached is not None:
            return
        time.sleep(2.0**attempt)
    raise CannotRun(f"{len(hashes)} blocks were not taken in {_ATTEMPTS} puts; misses: {dict(client.misses)}")
