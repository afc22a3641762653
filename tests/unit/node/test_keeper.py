"""When a node is released, and how conditions are put on record. Passes against an API server: tests/controlplane."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kvtier_agent.conditions import to_conditions
from kvtier_agent.node.keeper import decide_release_wait, is_flushed
from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.words import Verdict

from tests.unit.node.cache_nodes import cache_node, condition

FLUSHED = (condition("Drained", "True", "Flushed"),)
ENDED = (condition("Ready", "False", "StoreStopped"),)


@pytest.mark.parametrize(
    ("conditions", "connected", "absent_s", "message"),
    [
        ((), True, 0.0, "the store of TierClass gpu on node n1 is flushing"),
        (FLUSHED, True, 0.0, "the store of TierClass gpu on node n1 has flushed and is to be ended"),
        ((), False, 14.0, "the store of TierClass gpu has left node n1; what it kept goes next"),
        ((), False, 16.0, None),
        (FLUSHED, False, 1.0, "the store of TierClass gpu has left node n1; what it kept goes next"),
        (FLUSHED, False, 3.0, None),
        (ENDED, True, 3.0, "the store of TierClass gpu on node n1 is flushing"),
        (ENDED, False, 1.0, "the store of TierClass gpu has left node n1; what it kept goes next"),
        (ENDED, False, 3.0, None),
    ],
    ids=[
        "flushing",
        "flushed",
        "just-left",
        "absent",
        "flushed-and-just-left",
        "flushed-and-gone",
        "ended-and-back",
        "ended-and-just-left",
        "ended-and-gone",
    ],
)
def test_release_waits_for_the_store_to_leave(
    conditions: tuple[dict[str, object], ...], connected: bool, absent_s: float, message: str | None
) -> None:
    node = cache_node(drain=True, conditions=conditions)
    wait = decide_release_wait(node, absent_s, connected=connected)
    if message is None:
        assert wait is None
    else:
        assert wait == Verdict(ConditionType.RELEASED, "False", Reason.IN_USE, message)


def test_flushed_counts_only_while_the_spec_asks_for_a_drain() -> None:
    assert is_flushed(cache_node(drain=True, conditions=FLUSHED))
    assert not is_flushed(cache_node(drain=False, conditions=FLUSHED))
    assert not is_flushed(cache_node(drain=True, conditions=(condition("Drained", "False"),)))


@pytest.mark.parametrize(
    ("status", "stamp"), [("True", "2026-01-01T00:00:00Z"), ("False", "2026-05-01T12:00:00Z")], ids=["kept", "moved"]
)
def test_transition_time_moves_only_with_the_status(status: str, stamp: str) -> None:
    previous = cache_node(conditions=(condition("Preflight", "True", "Old", "old"),)).conditions
    verdict = Verdict(ConditionType.PREFLIGHT, status, Reason.PREFLIGHT_PASSED, "new")  # type: ignore[arg-type]
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert to_conditions([verdict], previous, generation=4, now=now) == [
        {
            "type": "Preflight",
            "status": status,
            "reason": "PreflightPassed",
            "message": "new",
            "lastTransitionTime": stamp,
            "observedGeneration": 4,
        }
    ]
