"""docs/operations.md names what there is: reasons, states, fields, metrics."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.metrics import ADOPTION, DEVICE_COUNTERS, POOL_GAUGES, SnapshotCollector
from kvtier_crds.conditions import CONDITIONS
from kvtier_crds.models import DeviceState
from kvtier_operator.desired.grants import ACCOUNT_BYTES
from kvtier_operator.names import MAX_POOLS_PER_NODE

from tests.unit.serve.snapshots import pool, snapshot

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/operations.md").read_text()


def metric_names() -> set[str]:
    """Every sample's name of a store that tells all it can."""
    told = snapshot(pools=(pool(gauges=dict.fromkeys(POOL_GAUGES, 1.0)),), adoption=dict.fromkeys(ADOPTION, 1.0))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        attendant = Attendant(theirs)
        attendant.snapshot = told
        families = list(SnapshotCollector(attendant).collect())
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return names | {f"kvtier_device_{counter}_total" for counter in DEVICE_COUNTERS}


def test_metrics_that_the_page_names_are_served() -> None:
    named = set(re.findall(r"`(kvtier_[a-z_]+)(?:\{[^}]*\})?`", PAGE))
    assert len(named) > 15
    assert named <= metric_names()


def test_every_state_of_a_device_has_its_row() -> None:
    table = PAGE.partition("| state | reads |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([A-Z][A-Za-z]+) \|", table, re.M)
    assert sorted(rows) == sorted(state.value for state in DeviceState)


def test_every_reason_that_needs_a_person_has_a_row() -> None:
    for condition in CONDITIONS:
        for text in condition.reasons:
            if text.remedy not in ("Nothing to do.", "Wait.", "Wait for it."):
                assert f"\n| `{text.reason}` |" in PAGE
                assert f"{condition.kind} {condition.type}={text.status}" in PAGE


def test_limits_are_those_of_the_code() -> None:
    assert f"A node takes {MAX_POOLS_PER_NODE} pools" in PAGE
    assert f"holds {ACCOUNT_BYTES >> 10} KiB of service accounts" in PAGE


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_link_leads_somewhere(path: str) -> None:
    assert (REPOSITORY / "docs" / path).exists()
