"""DaemonSets, ConfigMaps and finalizers: made, kept until the drain, removed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from kvtier_operator.desired.actions import Delete, SetFinalizers
from kvtier_operator.desired.store import store_objects
from kvtier_operator.desired.stores import StoreSteps, decide_stores, differs
from kvtier_operator.plan import pods_by_node
from kvtier_operator.view.facts import View

from tests.unit.operator.build import SETTINGS, ago, cache_node, condition, node, pod, tier_class, view

Object = dict[str, Any]
DRAINED = condition("Drained", "True", "Flushed")
OBJECTS = store_objects(tier_class(), SETTINGS)
BOTH = ["DaemonSet kvtier-system/kvtier-store-flash", "ConfigMap kvtier-system/kvtier-store-flash"]


def steps(seen: View) -> StoreSteps:
    return decide_stores(seen, pods_by_node(seen), SETTINGS)


def deleted(result: StoreSteps) -> list[str]:
    return [str(action.step.target) for action in result.deletions if isinstance(action.step, Delete)]


def finalizers(actions: list[Any]) -> list[tuple[str, ...]]:
    return [action.step.finalizers for action in actions if isinstance(action.step, SetFinalizers)]


def test_new_class_is_held_before_anything_is_made_for_it() -> None:
    result = steps(view(tier_class(finalizers=["other/one"])))

    (hold,) = result.finalizers
    assert finalizers(result.finalizers) == [("other/one", "kvtier.io/drain")]
    (configuration,), (daemon_set,) = result.configuration, result.daemon_sets
    assert hold.step.target in configuration.requires
    assert {hold.step.target, configuration.step.target} == set(daemon_set.requires)


def test_objects_as_they_should_be_are_left_alone() -> None:
    result = steps(view(tier_class(), *OBJECTS))

    assert not (result.finalizers or result.configuration or result.daemon_sets or result.deletions)


def test_fields_that_the_api_server_fills_in_do_not_count() -> None:
    config_map, daemon_set = deepcopy(OBJECTS)
    daemon_set["spec"]["revisionHistoryLimit"] = 10
    daemon_set["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"

    assert steps(view(tier_class(), config_map, daemon_set)).daemon_sets == []


@pytest.mark.parametrize("drift", ["image", "annotation", "label"])
def test_object_changed_by_another_is_applied_again(drift: str) -> None:
    config_map, daemon_set = deepcopy(OBJECTS)
    match drift:
        case "image":
            daemon_set["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
        case "annotation":
            daemon_set["metadata"]["annotations"]["kvtier.io/applied-hash"] = "other"
        case "label":
            del daemon_set["metadata"]["labels"]["app.kubernetes.io/name"]

    assert len(steps(view(tier_class(), config_map, daemon_set)).daemon_sets) == 1


DELETING = tier_class(deleting=ago(minutes=1))


@pytest.mark.parametrize(
    ("entries", "stops"),
    [
        pytest.param([DELETING, node(), cache_node(drain=True), pod()], False, id="not drained"),
        pytest.param([DELETING, node(), cache_node(conditions=[DRAINED]), pod()], False, id="drain not yet asked for"),
        pytest.param([DELETING, node(), cache_node(drain=True, conditions=[DRAINED]), pod()], True, id="drained"),
        pytest.param([DELETING, node(), cache_node(drain=True)], True, id="no pod there"),
        pytest.param(
            [DELETING, node(), cache_node(drain=True), pod(waiting={"reason": "CrashLoopBackOff"}, ready=False)],
            True,
            id="pod cannot run",
        ),
        pytest.param([DELETING, cache_node(drain=True), pod()], True, id="node gone"),
        pytest.param([DELETING], True, id="no node"),
        pytest.param([node(), cache_node(drain=True), pod()], False, id="class gone, not drained"),
        pytest.param([], True, id="class gone"),
        pytest.param([tier_class(tiers={"dram": {}})], False, id="unreadable class"),
    ],
)
def test_store_is_removed_only_when_it_has_drained(entries: list[Any], stops: bool) -> None:
    assert deleted(steps(view(*entries, *OBJECTS))) == (BOTH if stops else [])


@pytest.mark.parametrize("other", ["name", "label"])
def test_object_that_another_made_is_never_removed(other: str) -> None:
    config_map = deepcopy(OBJECTS[0])
    if other == "name":
        config_map["metadata"]["name"] = "mine"
    else:
        config_map["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "me"

    assert deleted(steps(view(config_map))) == []


@pytest.mark.parametrize(
    ("left", "released"),
    [([OBJECTS[0]], False), ([OBJECTS[1]], False), ([cache_node(drain=True)], False), ([], True)],
    ids=["configuration", "daemon set", "cache node", "nothing"],
)
def test_class_is_let_go_when_nothing_of_it_is_left(left: list[Any], released: bool) -> None:
    held = tier_class(deleting=ago(minutes=1), finalizers=["other/one", "kvtier.io/drain"])

    assert finalizers(steps(view(held, *left)).releases) == ([("other/one",)] if released else [])


@pytest.mark.parametrize(
    ("desired", "live", "result"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1}, {}, True),
        ({"a": [1]}, {"a": [1, 2]}, True),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, False),
        ({"a": {"b": 1}}, {"a": None}, True),
    ],
)
def test_only_what_is_wanted_is_compared(desired: Object, live: Object, result: bool) -> None:
    assert differs(desired, live) is result
