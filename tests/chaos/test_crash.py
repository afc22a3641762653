"""The crash test, short: the same code as `make crash`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crash import PartsUnavailable, crash, plan_parts
from tests.chaos.report import Least, find_faults


@pytest.mark.timeout(900)
def test_store_crashed_in_every_way_keeps_its_promises(tmp_path: Path) -> None:
    try:
        report = crash({"kills": 8, "cuts": 8, "flips": 200}, seed=20, at_once=2, out=tmp_path / "crash.json")
    except PartsUnavailable:
        pytest.skip("this machine has no memory cgroups or no FUSE")
    least = Least(kills=8, kills_with_put_in_flight=4, power_cuts=8, bit_flips=200, drawn=1_000)
    assert find_faults(report, least) == []


def test_parts_add_up_and_mix_the_kinds() -> None:
    parts = plan_parts({"kills": 120, "cuts": 40, "flips": 2_500}, seed=1)
    for kind, count in {"kills": 120, "cuts": 40, "flips": 2_500}.items():
        assert sum(part.count for part in parts if part.kind == kind) == count
    assert {part.kind for part in parts[:2]} == {"kills", "flips"}
    assert len({part.seed for part in parts}) == len(parts)
