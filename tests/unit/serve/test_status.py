"""Snapshots to CacheNode.status: every condition with reason and message, figures as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kvtier_agent.control import DeviceSnapshot, TierUse
from kvtier_agent.quantities import exact
from kvtier_agent.serve.reporter import decide_write
from kvtier_agent.serve.status import (
    build_status,
    decide_drained,
    decide_ready,
    stopped_status,
)
from kvtier_crds.conditions import CONDITIONS
from kvtier_crds.models import CacheNodeStatus
from kvtier_crds.words import about, hit_ratio

from tests.unit.node.cache_nodes import cache_node, condition
from tests.unit.serve.snapshots import MIB, snapshot

GIB = 1 << 30
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DRAINING = {"drain": True}


@pytest.mark.parametrize(
    ("seen", "spec", "status", "reason", "message"),
    [
        pytest.param(snapshot(), {}, "True", "Serving", "1 pool is served on node n1", id="serving"),
        pytest.param(None, {}, "False", "Starting", "the store on node n1 has started and not spoken yet", id="silent"),
        pytest.param(
            snapshot(ready=False, message="recovering", node="", tiers={}),
            {},
            "False",
            "Recovering",
            "the store on node n1 reads what it kept: recovering",
            id="recovering",
        ),
        pytest.param(
            snapshot(ready=False, message="the node's pools are not known yet"),
            {},
            "False",
            "Starting",
            "the store on node n1 is not ready: the node's pools are not known yet",
            id="no-pools-yet",
        ),
        pytest.param(
            snapshot(node="", ready=False, message="kvtier-node's socket /run/kvtier/node/node.sock: no answer"),
            {},
            "False",
            "NodeAgentUnavailable",
            "pods cannot reach the store on node n1: kvtier-node's socket /run/kvtier/node/node.sock: no answer; "
            "check the kvtier-node pod of that node",
            id="no-node-agent",
        ),
        pytest.param(
            snapshot(),
            DRAINING,
            "False",
            "Draining",
            "node n1 leaves TierClass gpu; its store takes no connection",
            id="draining",
        ),
    ],
)
def test_ready_names_the_cause(seen: Any, spec: dict[str, Any], status: str, reason: str, message: str) -> None:
    verdict = decide_ready(seen, cache_node(**spec))
    assert (verdict.status, verdict.reason, verdict.message) == (status, reason, message)


@pytest.mark.parametrize(
    ("seen", "spec", "status", "reason"),
    [
        (snapshot(drained=True), DRAINING, "True", "Flushed"),
        (snapshot(drained=True, generation=2), DRAINING, "False", "Flushing"),
        (snapshot(), DRAINING, "False", "Flushing"),
        (None, DRAINING, "False", "Flushing"),
        (snapshot(drained=True), {}, "False", "NotDraining"),
    ],
    ids=["done", "done-for-an-older-spec", "under-way", "silent", "not-asked-for"],
)
def test_drained_holds_for_the_generation_that_asks(seen: Any, spec: dict[str, Any], status: str, reason: str) -> None:
    verdict = decide_drained(seen, cache_node(**spec))
    assert (verdict.status, verdict.reason) == (status, reason)


def test_reasons_are_those_that_the_reference_lists() -> None:
    listed = {(text.type, reason.reason, reason.status) for text in CONDITIONS if text.kind == "CacheNode"
              for reason in text.reasons}  # fmt: skip
    seen = [
        None,
        snapshot(),
        snapshot(ready=False, tiers={}),
        snapshot(ready=False),
        snapshot(ready=False, node=""),
        snapshot(drained=True),
    ]
    for node in (cache_node(), cache_node(drain=True)):
        for item in seen:
            for verdict in (decide_ready(item, node), decide_drained(item, node)):
                assert (verdict.type, verdict.reason, verdict.status) in listed


def test_status_is_what_the_resource_takes() -> None:
    seen = snapshot(
        devices=(
            DeviceSnapshot("d0", "ready", capacity_bytes=GIB, used_bytes=GIB // 2),
            DeviceSnapshot("d1", "gone", "x" * 5000),
        )
    )
    status = build_status(seen, cache_node(), NOW)
    parsed = CacheNodeStatus.model_validate(status)
    assert parsed.observed_generation == 3
    assert parsed.hit_ratio == "87%"
    assert parsed.tiers is not None
    assert parsed.tiers.dram is not None
    assert (parsed.tiers.dram.capacity, parsed.tiers.dram.used) == ("1.5Gi", "300Mi")
    assert parsed.pools[0].tiers.nvme is not None
    assert (parsed.pools[0].tiers.nvme.capacity, parsed.pools[0].recent_asked, parsed.pools[0].blocks) == (
        "1Gi",
        200,
        100,
    )
    assert [(device.name, device.state, device.capacity, device.used) for device in parsed.devices] == [
        ("d0", "Ready", "1Gi", "512Mi"),
        ("d1", "Gone", None, None),
    ]


def test_status_without_snapshot_has_conditions_alone() -> None:
    assert set(build_status(None, cache_node(), NOW)) == {"storeVersion", "conditions"}


def test_stopped_status_keeps_figures_and_says_so() -> None:
    node = cache_node(conditions=(condition("Ready", "True", "Serving"),))
    last = build_status(snapshot(), node, NOW)
    status = stopped_status(last, node, NOW)
    ready, *others = status["conditions"]
    assert (ready["reason"], ready["status"], ready["lastTransitionTime"]) == (
        "StoreStopped",
        "False",
        "2026-05-01T12:00:00Z",
    )
    assert [other["type"] for other in others] == ["Degraded", "Drained"]
    assert status["tiers"] == last["tiers"]


@pytest.mark.parametrize(
    ("asked", "hit", "ratio"), [(0, 0, "-"), (200, 175, "87%"), (1000, 999, "99%"), (5, 5, "100%"), (9, 0, "0%")]
)
def test_hit_ratio_of_one_hundred_means_every_block(asked: int, hit: int, ratio: str) -> None:
    assert hit_ratio(asked, hit) == ratio


@pytest.mark.parametrize(
    ("size", "exactly", "roughly"),
    [
        (0, "0", "0"),
        (900, "900", "900"),
        (1536 * MIB, "1.5Gi", "1.5Gi"),
        (1280 * MIB, "1.25Gi", "1.2Gi"),
        (10**9, "1G", "954Mi"),
        (300 * MIB + 1, str(300 * MIB + 1), "300Mi"),
        (8 << 40, "8Ti", "8Ti"),
    ],
)
def test_sizes_read_well(size: int, exactly: str, roughly: str) -> None:
    assert (exact(size), about(size)) == (exactly, roughly)


def test_unchanged_status_is_not_written() -> None:
    present = build_status(snapshot(), cache_node(), NOW)
    node = cache_node(conditions=tuple(present["conditions"]))
    later = build_status(snapshot(), node, datetime(2026, 6, 1, tzinfo=UTC))
    assert not decide_write(later, present | {"conditions": [*present["conditions"], condition("Preflight", "True")]},
                            figures_due=True)  # fmt: skip


def test_changed_figures_are_written_when_due() -> None:
    present = build_status(snapshot(), cache_node(), NOW)
    used = {"dram": TierUse(1536 * MIB, 400 * MIB, 41)}
    wanted = build_status(snapshot(tiers=used), cache_node(conditions=tuple(present["conditions"])), NOW)
    assert not decide_write(wanted, present, figures_due=False)
    assert decide_write(wanted, present, figures_due=True)


def test_changed_reason_is_written_at_once_and_changed_text_when_due() -> None:
    recovering = build_status(snapshot(ready=False, tiers={}, message="1 of 9"), cache_node(), NOW)
    node = cache_node(conditions=tuple(recovering["conditions"]))
    further = build_status(snapshot(ready=False, tiers={}, message="2 of 9"), node, NOW)
    assert not decide_write(further, recovering, figures_due=False)
    assert decide_write(further, recovering, figures_due=True)
    assert decide_write(build_status(snapshot(), node, NOW), recovering, figures_due=False)
