"""What is measured, a module each, in the order in which it is run."""

from __future__ import annotations

from typing import Final

from kvtier_bench.context import Scenario

from . import break_even, copies, devices, full, get, growth, index, lookup, mixed, recovery, restore, soak

SCENARIOS: Final[tuple[Scenario, ...]] = (
    lookup.SCENARIO,
    get.SCENARIO,
    *copies.SCENARIOS,
    restore.SCENARIO,
    devices.SCENARIO,
    growth.SCENARIO,
    full.SCENARIO,
    break_even.SCENARIO,
    mixed.SCENARIO,
    recovery.SCENARIO,
    index.SCENARIO,
    soak.SCENARIO,
)
