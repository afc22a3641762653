"""CacheNodes: made, granted, drained, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kvtier_operator.desired.actions import Action, Apply, Delete
from kvtier_operator.desired.cache_nodes import NodeSteps, decide_cache_nodes
from kvtier_operator.desired.ownership import decide_owners
from kvtier_operator.plan import pods_by_node
from kvtier_operator.view.facts import View

from tests.unit.operator.build import (
    DRAM_ONLY,
    NOW,
    WITH_NVME,
    ago,
    cache_node,
    condition,
    node,
    pod,
    pool,
    tier_class,
    view,
)

Object = dict[str, Any]
DRAINED = condition("Drained", "True", "Flushed")
RELEASED = condition("Released", "True", "NothingLeft")
ENTRY = {
    "uid": "uid-inference-chat",
    "namespace": "inference",
    "name": "chat",
    "quota": {"dram": "2Gi"},
    "serviceAccounts": [{"namespace": "inference", "name": "*"}],
    "evictionPolicy": "default",
    "restore": "auto",
}


def steps(seen: View) -> NodeSteps:
    return decide_cache_nodes(seen, decide_owners(seen), pods_by_node(seen), NOW)


def applied(actions: Sequence[Action]) -> dict[str, Object]:
    return {a.step.target.name: a.step.body["spec"] for a in actions if isinstance(a.step, Apply)}


def deleted(actions: Sequence[Action]) -> list[str]:
    return [str(action.step.target) for action in actions if isinstance(action.step, Delete)]


def test_selected_node_gets_a_cache_node_with_class_and_pools() -> None:
    result = steps(view(tier_class(), node(), pool()))

    assert applied(result.applies) == {
        "n1": {
            "tierClass": "flash",
            "tiers": {"dram": {"capacityPerNode": "8Gi", "hugePages": "none"}},
            "pools": [ENTRY],
            "drain": False,
        }
    }
    assert result.added == {"flash": ["n1"]}


def test_cache_node_as_it_should_be_is_left_alone() -> None:
    result = steps(view(tier_class(), node(), pool(), cache_node(pools=[ENTRY])))

    assert (result.applies, result.deletions, result.added) == ([], [], {})


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        pytest.param({}, {"serviceAccounts": [{"namespace": "inference", "name": "*"}]}, id="nobody named"),
        pytest.param(
            {"evictionPolicy": "lru", "ttl": "36h", "nvme": {"write": "back"}, "restore": "always"},
            {
                "evictionPolicy": "lru",
                "ttl": "36h",
                "nvme": {"write": "back", "admission": "all"},
                "restore": "always",
            },
            id="policies",
        ),
        pytest.param(
            {"serviceAccounts": [{"name": "web"}, {"namespace": "other", "name": "*"}]},
            {"serviceAccounts": [{"namespace": "inference", "name": "web"}, {"namespace": "other", "name": "*"}]},
            id="named",
        ),
        pytest.param({"quota": {"dram": "64Gi"}}, {"quota": {"dram": "8Gi"}}, id="quota above capacity"),
        pytest.param({"quota": {"dram": "2Gi", "nvme": "1Gi"}}, {"quota": {"dram": "2Gi"}}, id="no such tier"),
    ],
)
def test_grant_is_what_the_class_can_give(given: Object, entry: Object) -> None:
    spec = applied(steps(view(tier_class(), node(), pool(**given))).applies)["n1"]

    assert spec["pools"] == [ENTRY | entry]


def test_nvme_quota_is_granted_where_the_class_has_the_tier() -> None:
    seen = view(tier_class(tiers=WITH_NVME), node(), pool(quota={"dram": "2Gi", "nvme": "1Ti"}))

    assert applied(steps(seen).applies)["n1"]["pools"][0]["quota"] == {"dram": "2Gi", "nvme": "100Gi"}


def test_pool_of_another_class_is_not_granted() -> None:
    assert applied(steps(view(tier_class(), node(), pool(tierClass="other"))).applies)["n1"]["pools"] == []


def test_deleted_pool_is_taken_out() -> None:
    assert applied(steps(view(tier_class(), node(), cache_node(pools=[ENTRY]))).applies)["n1"]["pools"] == []


def test_unreadable_pool_keeps_its_grant() -> None:
    seen = view(tier_class(), node(), pool(quota={}), cache_node(pools=[ENTRY]))

    assert steps(seen).applies == []


def test_more_pools_than_a_node_takes_leaves_the_newest_out() -> None:
    pools = [pool(f"p{number:03}") for number in range(513)]
    granted = applied(steps(view(tier_class(), node(), *pools)).applies)["n1"]["pools"]

    assert len(granted) == 512
    assert "p512" not in {entry["name"] for entry in granted}


def test_entry_that_another_wrote_is_taken_out() -> None:
    stranger = ENTRY | {"uid": "uid-stranger", "name": "stranger"}
    seen = view(tier_class(), node(), pool(), cache_node(pools=[ENTRY, stranger]))

    assert applied(steps(seen).applies)["n1"]["pools"] == [ENTRY]


UNSELECTED = node(labels={})


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([tier_class(), UNSELECTED, cache_node()], "drain", id="no longer selected"),
        pytest.param([UNSELECTED, cache_node()], "drain", id="class gone"),
        pytest.param([tier_class(deleting=ago(minutes=1)), node(), cache_node()], "drain", id="class being deleted"),
        pytest.param(
            [tier_class(deleting=ago(minutes=1), tiers={"dram": {}}), node(), cache_node()],
            "drain",
            id="unreadable class being deleted",
        ),
        pytest.param([tier_class(), UNSELECTED, cache_node(drain=True)], "wait", id="draining"),
        pytest.param([tier_class(), UNSELECTED, cache_node(drain=True, conditions=[DRAINED])], "wait", id="drained"),
        pytest.param(
            [tier_class(), UNSELECTED, cache_node(drain=True, conditions=[RELEASED])], "delete", id="released"
        ),
        pytest.param(
            [tier_class(), UNSELECTED, cache_node(conditions=[RELEASED])], "drain", id="released before the drain"
        ),
        pytest.param(
            [tier_class(), UNSELECTED, cache_node(drain=True, conditions=[RELEASED | {"observedGeneration": 0}])],
            "wait",
            id="released for an older spec",
        ),
        pytest.param([tier_class(), cache_node()], "delete", id="node gone"),
        pytest.param([tier_class(), cache_node(drain=True)], "delete", id="node gone while draining"),
        pytest.param([tier_class(tiers={"dram": {}}), UNSELECTED, cache_node()], "wait", id="unreadable class"),
    ],
)
def test_node_that_leaves_its_class_is_drained_then_deleted(entries: list[Any], expected: str) -> None:
    result = steps(view(*entries))

    drained = {name: spec["drain"] for name, spec in applied(result.applies).items()}
    assert drained == ({"n1": True} if expected == "drain" else {})
    assert deleted(result.deletions) == (["CacheNode n1"] if expected == "delete" else [])


def test_drain_keeps_the_rest_of_the_spec() -> None:
    spec = {"tierClass": "flash", "tiers": DRAM_ONLY, "pools": [ENTRY], "drain": False}
    result = steps(view(tier_class(), UNSELECTED, cache_node(spec=spec)))

    assert applied(result.applies)["n1"] == spec | {"drain": True}
    assert result.draining == {"flash": ["n1"]}


def test_node_selected_again_while_draining_stays() -> None:
    result = steps(view(tier_class(), node(), cache_node(drain=True, conditions=[DRAINED])))

    assert applied(result.applies)["n1"]["drain"] is False


def test_node_won_by_another_class_drains_before_it_changes_hands() -> None:
    classes = [tier_class("old", created=ago(days=9)), tier_class("new", created=ago(days=1))]

    before = steps(view(*classes, node(), cache_node(of="new")))
    after = steps(view(*classes, node(), cache_node(of="new", drain=True, conditions=[RELEASED])))
    last = steps(view(*classes, node()))

    assert applied(before.applies)["n1"] | {"tiers": None} == {
        "tierClass": "new",
        "tiers": None,
        "pools": [],
        "drain": True,
    }
    assert (after.applies, deleted(after.deletions)) == ([], ["CacheNode n1"])
    assert applied(last.applies)["n1"]["tierClass"] == "old"


@pytest.mark.parametrize(
    ("started", "conditions", "ended"),
    [
        pytest.param(ago(minutes=5), [DRAINED], ["Pod kvtier-system/kvtier-store-new-n1"], id="drained"),
        pytest.param(ago(seconds=5), [DRAINED], [], id="just started"),
        pytest.param(ago(minutes=5), [], [], id="not drained"),
    ],
)
def test_drained_store_that_its_daemon_set_keeps_is_ended(
    started: str, conditions: list[Object], ended: list[str]
) -> None:
    classes = [tier_class("old", created=ago(days=9)), tier_class("new", created=ago(days=1))]
    losing = cache_node(of="new", drain=True, conditions=conditions)
    pods = [pod(of="new", started=started), pod(of="old", started=ago(minutes=5))]

    assert deleted(steps(view(*classes, node(), losing, *pods)).deletions) == ended


def test_deletion_is_of_exactly_that_object() -> None:
    (action,) = steps(view(tier_class(), cache_node())).deletions

    assert isinstance(action.step, Delete)
    assert action.step.uid == "uid-n1"
