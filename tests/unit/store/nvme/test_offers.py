"""What lookups are offered of what lies on nvme, where there is nothing to weigh or nothing to read."""

from __future__ import annotations

from kvtier_client.protocol.messages import Report

from tests.unit.store.nvme.rig import LAYOUT, Rig

QUICK = Report(LAYOUT, 16, 1e12, 0, 4096.0)
"""An engine that computes faster than any device reads."""


async def test_all_is_offered_while_a_speed_is_not_known(rig: Rig) -> None:
    pool = await rig.pool()
    assert rig.nvme.offered(pool, LAYOUT, 100, 10) == 100
    rig.nvme.report(pool, QUICK)
    assert rig.nvme.offered(pool, LAYOUT, 100, 10) == 100, "no device was measured yet"


async def test_nothing_below_dram_is_offered_once_computing_is_faster(rig: Rig) -> None:
    pool, device = await rig.pool(), rig.nvme._books.devices[0]
    rig.nvme.report(pool, QUICK)
    for second in range(10):
        device.estimate.begun(8 << 20, float(second))
        device.estimate.ended(8 << 20, second + 0.5, good=True)
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
