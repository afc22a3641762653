"""What is measured, a module each, in the order in which it is run."""

from __future__ import annotations

from typing import Final

from kvtier_bench.context import Scenario

from . import copies, get

SCENARIOS: Final[tuple[Scenario, ...]] = (get.SCENARIO, *copies.SCENARIOS)
