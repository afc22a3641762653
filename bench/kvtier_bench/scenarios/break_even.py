"""Break-even: how soon restoring is no longer offered from a device that became slow, and offered again afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final

from kvtier_client.client import Client

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.iogroup import device_number, open_io_group
from kvtier_bench.loopdevice import mounted_loop
from kvtier_bench.memory import MIB
from kvtier_bench.scenarios.restore import store_flushed
from kvtier_bench.store import one_pool
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGE_BYTES: Final = MIB
CHAIN_PAGES: Final = 16
CHAINS: Final = 48
BLOCK_TOKENS: Final = 256
ENGINE_BYTES_PER_S: Final = 80 * MIB
"""What recomputing is worth: a device above this pays."""
SLOW: Final = 8 * MIB
LONGEST_S: Final = 60.0
PAUSE_S: Final = 0.05
STEADY: Final = 3
"""Answers in a row that count as a decision."""


def run(context: Context) -> Iterator[Figure]:
    """Restore all the time what is offered; throttle, wait for the first change, lift it, wait for the second."""
    chain_bytes = CHAIN_PAGES * PAGE_BYTES
    disk_bytes = 2 * CHAINS * chain_bytes + 256 * MIB
    context.need_disk(disk_bytes)
    with contextlib.ExitStack() as stack:
        mount = stack.enter_context(mounted_loop(context.disk / "loop", disk_bytes))
        group = stack.enter_context(open_io_group())
        spec = one_pool(4 * chain_bytes, 2 * CHAINS * chain_bytes, (mount / "media",))
        store = stack.enter_context(context.store(spec, group))
        store.start()
        store.wait_ready()
        with store.client() as client:
            payloads = Payloads(PAGE_BYTES)
            for chain in range(CHAINS):
                store_flushed(client, payloads, chain_hashes(chain, CHAIN_PAGES))
        store.restart_cold()
        with store.client() as client:
            reader = Reader(client)
            reader.until(offered=True)
            device = device_number(mount)
            group.limit({device: SLOW})
            closed_s = reader.until(offered=False)
            group.limit({device: None})
            opened_s = reader.until(offered=True)
    beside = f"recomputing is worth {ENGINE_BYTES_PER_S >> 20} MiB/s; the device gave {SLOW >> 20}, then all it has"
    yield Figure("break_even_closed_s", "restoring no longer offered from a slow device", closed_s, "s", beside)
    yield Figure("break_even_opened_s", "offered again after the device recovered", opened_s, "s", beside)


class Reader:
    """A client that restores what is offered, as an engine does.

    Raises CannotRun when client and store know no break-even.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client
        report = getattr(client, "report", None)
        if report is None:
            raise CannotRun("the client cannot report an engine's speed")
        bytes_per_token = PAGE_BYTES / BLOCK_TOKENS
        for depth in (0, CHAIN_PAGES * BLOCK_TOKENS):
            report(
                LAYOUT,
                block_tokens=BLOCK_TOKENS,
                prefill_tokens_per_s=ENGINE_BYTES_PER_S / bytes_per_token,
                at_depth=depth,
                bytes_per_token=bytes_per_token,
            )
        self._next = 0

    def until(self, *, offered: bool) -> float:
        """Seconds until lookups of chains below DRAM offer some of that, or nothing, STEADY times in a row.

        Raises CannotRun after LONGEST_S.
        """
        began = first = time.monotonic()
        same = 0
        while same < STEADY:
            if time.monotonic() - began > LONGEST_S:
                raise CannotRun(f"restoring was {'not' if offered else 'still'} offered after {LONGEST_S:.0f} s")
            hashes = chain_hashes(self._next % CHAINS, CHAIN_PAGES)
            self._next += 1
            found = self._client.lookup(LAYOUT, hashes)
            if found.dram_blocks == found.whole_blocks:
                continue
            if (found.offered_blocks > found.dram_blocks) is offered:
                same += 1
                first = time.monotonic() if same == 1 else first
            else:
                same = 0
            if found.offered_blocks:
                self._client.get(LAYOUT, hashes[: found.offered_blocks], deadline_s=5.0).release()
            time.sleep(PAUSE_S)
        return first - began


SCENARIO: Final = Scenario(
    "break-even",
    "how soon the decision follows the device",
    ("break_even_closed_s", "break_even_opened_s"),
    run,
)
