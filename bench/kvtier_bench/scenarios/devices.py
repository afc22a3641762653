"""Two nvme devices against one, each a loop device throttled alike through its control group."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import Figure
from kvtier_bench.iogroup import IoGroup, device_number, open_io_group
from kvtier_bench.loopdevice import mounted_loop
from kvtier_bench.memory import MIB
from kvtier_bench.scenarios.restore import store_flushed, timed_get
from kvtier_bench.stats import median
from kvtier_bench.store import StoreSpec, one_pool
from kvtier_bench.workload import Payloads, chain_hashes

THROTTLE: Final = 128 * MIB
"""Bytes a second that each device reads at most: far below what the disk gives, so that two are twice as much."""
PAGE_BYTES: Final = MIB
CHAIN_PAGES: Final = 128
CHAIN_BYTES: Final = CHAIN_PAGES * PAGE_BYTES
CHAINS: Final = 3


def run(context: Context) -> Iterator[Figure]:
    """Restore chains of 128 MiB from a store of one device, and from one of two, in turns."""
    disk_bytes = 2 * CHAINS * CHAIN_BYTES + 256 * MIB
    context.need_disk(3 * disk_bytes)
    with contextlib.ExitStack() as stack:
        mounts = [stack.enter_context(mounted_loop(context.disk / f"loop{n}", disk_bytes)) for n in range(3)]
        group = stack.enter_context(open_io_group())
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(context.scaled(2, 1)):
            for devices in (mounts[:1], mounts[1:]):
                seconds[len(devices)] += _restore(context, group, devices, f"store{len(devices)}-{turn}")
    one, two = (CHAIN_BYTES / median(seconds[count]) / 1e6 for count in (1, 2))
    beside = f"{two:.0f} and {one:.0f} MB/s, each device throttled to {THROTTLE / 1e6:.0f}"
    yield Figure("two_devices_vs_one", "restore of 128 MiB from two devices, against one", two / one, "x", beside)


def _restore(context: Context, group: IoGroup, devices: list[Path], name: str) -> list[float]:
    """Seconds of each chain's restore."""
    media = tuple(device / name for device in devices)
    quota = len(devices) * 2 * CHAINS * CHAIN_BYTES // len(devices)
    spec: StoreSpec = one_pool((CHAINS + 1) * CHAIN_BYTES, quota, media)
    payloads = Payloads(PAGE_BYTES)
    limits = [device_number(device) for device in devices]
    with context.store(spec, group, name) as store:
        store.start()
        store.wait_ready()
        with store.client() as client:
            for chain in range(CHAINS):
                store_flushed(client, payloads, chain_hashes(chain, CHAIN_PAGES))
        store.restart_cold()
        group.limit(dict.fromkeys(limits, THROTTLE))
        try:
            with store.client() as client:
                return [timed_get(client, chain_hashes(chain, CHAIN_PAGES)) for chain in range(CHAINS)]
        finally:
            group.limit(dict.fromkeys(limits, None))
            store.kill()
            for folder in media:
                shutil.rmtree(folder)


SCENARIO: Final = Scenario("devices", "two devices against one", ("two_devices_vs_one",), run)
