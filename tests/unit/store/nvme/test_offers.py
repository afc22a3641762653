"""What lookups are offered of what lies on nvme, where there is nothing to weigh or nothing to read."""

from __future__ import annotations

import math

from kvtier_client.protocol.messages import Report

from tests.unit.store.nvme.rig import LAYOUT, Rig

QUICK = Report(LAYOUT, 16, 1e12, 0, 4096.0)
"""An engine that computes faster than any device reads."""


def slow(number: int, tokens_per_s: float = 100.0) -> Report:
    """One of many engines that all compute at this speed, each in a layout of its own."""
    return Report(number.to_bytes(32, "big"), 16, tokens_per_s, 0, 4096.0)


def measure(rig: Rig) -> None:
    """Ten seconds of reads of the first device."""
    estimate = rig.nvme._books.devices[0].estimate
    for second in range(10):
        estimate.begun(8 << 20, float(second))
        estimate.ended(8 << 20, second + 0.5, good=True)


async def test_all_is_offered_while_a_speed_is_not_known(rig: Rig) -> None:
    pool = await rig.pool()
    assert rig.nvme.offered(pool, LAYOUT, 100, 10) == 100
    rig.nvme.report(pool, QUICK)
    assert rig.nvme.offered(pool, LAYOUT, 100, 10) == 100, "no device was measured yet"


async def test_nothing_below_dram_is_offered_once_computing_is_faster(rig: Rig) -> None:
    pool = await rig.pool()
    rig.nvme.report(pool, QUICK)
    measure(rig)
    offered = [rig.nvme._offers.offered(pool, LAYOUT, 100, 10, 10.0) for _ in range(10)]
    assert offered.count(10) >= 9, "but for one that probes"
    always = await rig.pool("pool-2", restore="always")
    rig.nvme.report(always, QUICK)
    assert rig.nvme.offered(always, LAYOUT, 100, 10) == 100


async def test_nothing_below_dram_is_offered_where_no_device_is_readable(rig: Rig) -> None:
    pool, device = await rig.pool(), rig.nvme._books.devices[0]
    device.health.gone("pulled", 0.0)
    assert rig.nvme.offered(pool, LAYOUT, 100, 10) == 10
    assert rig.nvme.offered(pool, LAYOUT, 10, 10) == 10


async def test_layouts_that_were_reported_last_count_and_none_of_a_purged_pool(rig: Rig) -> None:
    pool, offers = await rig.pool(), rig.nvme._offers
    measure(rig)
    rig.nvme.report(pool, QUICK)
    rig.nvme.report(pool, slow(0))
    assert offers.breakeven_blocks(pool.uid, 10.0) == math.inf
    for number in range(1, 64):
        rig.nvme.report(pool, slow(number))
    assert offers.breakeven_blocks(pool.uid, 10.0) == 1, "the 64 that were reported last pay"
    assert len(offers._pools[pool.uid]) == 64
    await rig.nvme.purge(pool)
    assert offers.breakeven_blocks(pool.uid, 10.0) is None
    assert pool.uid not in offers._pools


async def test_least_prefix_that_pays_is_that_of_the_layout_with_the_highest_need(rig: Rig) -> None:
    pool, offers = await rig.pool(), rig.nvme._offers
    measure(rig)
    rig.nvme._books.devices[0].estimate.begun(8 << 20, 10.0)
    needs = []
    for number, speed in enumerate([100.0, 20.0, 200.0, 50.0, 1e12]):
        rig.nvme.report(pool, slow(number, speed))
        needs.append(offers.breakeven_blocks(pool.uid, 10.0))
    alone = []
    for number, speed in enumerate([100.0, 20.0, 200.0, 50.0, 1e12]):
        offers.forget(pool.uid)
        rig.nvme.report(pool, slow(number, speed))
        alone.append(offers.breakeven_blocks(pool.uid, 10.0))
    assert needs == [max(alone[: count + 1]) for count in range(5)]
    assert alone[1] < alone[3] < alone[0] < alone[2] < math.inf
    assert needs[-1] == math.inf
