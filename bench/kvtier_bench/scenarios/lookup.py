"""lookup of 2,048 hashes in an index of a million blocks: the whole client call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from kvtier_client.client import Client
from kvtier_client.protocol.messages import HashList, Lookup, LookupReply

from kvtier_bench.context import Context, Scenario
from kvtier_bench.echo import Echo
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.filling import CHAIN_BLOCKS, PAGE_BYTES, fill_blocks
from kvtier_bench.memory import MIB
from kvtier_bench.stats import interleaved
from kvtier_bench.store import one_pool, running
from kvtier_bench.workload import LAYOUT, chain_hashes

BLOCKS: Final = 1 << 20
ROUNDS: Final = 400


def run(context: Context) -> Iterator[Figure]:
    """Fill the index, then ask for a whole chain, half of one, and none, in turns."""
    blocks = context.scaled(BLOCKS, BLOCKS >> 4)
    nvme_bytes = blocks * PAGE_BYTES * 3 // 2 + 512 * MIB
    context.need_disk(nvme_bytes)
    with running(context.store(one_pool(512 * MIB, nvme_bytes, (context.disk / "media",)))) as store:
        with store.client() as client:
            fill_blocks(client, blocks, context.say)
            store.wait_quiet()
            chains = blocks // CHAIN_BLOCKS
            request = Lookup(1, LAYOUT, HashList.of(chain_hashes(0, CHAIN_BLOCKS)))
            with Echo(request, len(msgspec.msgpack.encode(LookupReply(1, 0, 0, 0)))) as echo:
                taken = interleaved(
                    {
                        "full": _asking(
                            client, lambda number: chain_hashes(number % chains, CHAIN_BLOCKS), CHAIN_BLOCKS
                        ),
                        "half": _asking(client, lambda number: _half(number % chains), CHAIN_BLOCKS // 2),
                        "none": _asking(client, lambda number: chain_hashes(number, CHAIN_BLOCKS, part=1), 0),
                        "echo": lambda _: echo.seconds(),
                    },
                    ROUNDS,
                )
        echoed = taken.pop("echo")
        worst = max(taken, key=lambda name: taken[name].p50)
        each = ", ".join(f"{name} {timings.p50 * 1e3:.2f} ms" for name, timings in taken.items())
        beside = f"{each}; the same bytes there and back over a socket {echoed.p50 * 1e3:.2f} ms"
        what = f"lookup of 2,048 hashes in {blocks:,} blocks"
        yield Figure("lookup_2048_ms_p50", what, taken[worst].p50 * 1e3, "ms", beside)
        yield Figure(
            "lookup_2048_ms_p99",
            "the same, slowest of a hundred",
            taken[worst].p99 * 1e3,
            "ms",
            f"over a socket {echoed.p99 * 1e3:.2f} ms",
        )


def _half(chain: int) -> list[bytes]:
    known = chain_hashes(chain, CHAIN_BLOCKS)[: CHAIN_BLOCKS // 2]
    return known + chain_hashes(chain, CHAIN_BLOCKS // 2, part=2)


def _asking(client: Client, hashes_of: Callable[[int], list[bytes]], expected: int) -> Callable[[int], float]:
    def ask(number: int) -> float:
        hashes = hashes_of(number)
        began = time.perf_counter()
        found = client.lookup(LAYOUT, hashes)
        seconds = time.perf_counter() - began
        if found.whole_blocks != expected:
            raise CannotRun(f"{found.whole_blocks} blocks found, not {expected}; misses: {dict(client.misses)}")
        return seconds

    return ask


SCENARIO: Final = Scenario(
    "lookup", "2,048 hashes among a million blocks", ("lookup_2048_ms_p50", "lookup_2048_ms_p99"), run
)
