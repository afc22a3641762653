"""The crash test, short: the same code as `make crash`."""

from __future__ import annotations

import pytest

from tests.chaos.crash import crash
from tests.chaos.memory_cgroup import CgroupUnavailable


def test_store_killed_at_random_moments_keeps_its_promises() -> None:
    try:
        report = crash(kills=5, seed=20)
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))
    assert report.kills == 5
    assert report.faults(least_served=500, least_in_flight=1) == []
