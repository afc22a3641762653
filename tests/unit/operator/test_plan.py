"""Every decision of one pass together: it converges, from any point at which it was cut off."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from kvtier_operator.desired.actions import Action, Apply, Delete, Plan, SetFinalizers, Stage
from kvtier_operator.objects import CACHE_NODES, CACHE_POOLS, CONFIG_MAPS, DAEMON_SETS, TIER_CLASSES
from kvtier_operator.plan import decide
from kvtier_operator.view.facts import View
from kvtier_operator.view.kinds import WATCHED_KINDS

from tests.unit.operator.build import (
    NOW,
    SERVING,
    SETTINGS,
    ago,
    cache_node,
    condition,
    node,
    pod,
    pool,
    tier_class,
    view,
)

FIELDS = {
    TIER_CLASSES: "classes",
    CACHE_POOLS: "pools",
    CACHE_NODES: "cache_nodes",
    DAEMON_SETS: "daemon_sets",
    CONFIG_MAPS: "config_maps",
}
KINDS = {kind.resource: kind for kind in WATCHED_KINDS}


def plan(seen: View) -> Plan:
    return decide(seen, {}, {}, SETTINGS, NOW)


def actions(of: Plan) -> list[Action]:
    return [action for stage in Stage if stage is not Stage.EVENTS for action in of[stage]]


def after(seen: View, done: Sequence[Action]) -> View:
    """The view once these actions are done; what the API server itself would do beside is left out."""
    for action in done:
        step = action.step
        facts = dict(getattr(seen, FIELDS[step.target.resource]))
        match step:
            case Apply(subresource="status"):
                key = KINDS[step.target.resource].key(_meta(step.target.namespace, step.target.name))
                reader = KINDS[step.target.resource].read
                read = reader({"metadata": step.body["metadata"], "spec": {}, "status": step.body["status"]})
                facts[key] = dataclasses.replace(facts[key], status=read.status)
            case Apply():
                read = KINDS[step.target.resource].read(step.body)
                present = facts.get(step.target.name)
                status = {"status": present.status} if present and step.target.resource is CACHE_NODES else {}
                facts[step.target.name] = dataclasses.replace(read, **status)
            case Delete():
                del facts[step.target.name]
            case SetFinalizers():
                held = facts[step.target.name]
                if held.deleting and not step.finalizers:
                    del facts[step.target.name]
                else:
                    meta = dataclasses.replace(held.meta, finalizers=step.finalizers)
                    facts[step.target.name] = dataclasses.replace(held, meta=meta)
        seen = dataclasses.replace(seen, **{FIELDS[step.target.resource]: facts})
    return seen


def _meta(namespace: str, name: str) -> Any:
    return dataclasses.replace(pool().meta, namespace=namespace, name=name)


def settle(seen: View) -> View:
    """The view once nothing is left to do."""
    for _ in range(10):
        todo = actions(plan(seen))
        if not todo:
            return seen
        seen = after(seen, todo)
    raise AssertionError(f"still to do: {todo}")


STARTS = {
    "new": [tier_class(finalizers=[]), node("n1"), node("n2"), pool()],
    "serving": [tier_class(), node("n1"), cache_node("n1", conditions=SERVING), pod("n1"), pool()],
    "contested": [tier_class("aa"), tier_class("bb"), node("n1"), pool(tierClass="bb")],
    "node leaves": [tier_class(), node("n1", labels={}), cache_node("n1"), pod("n1")],
    "released": [
        tier_class(deleting=ago(minutes=1)),
        node("n1"),
        cache_node("n1", drain=True, conditions=[condition("Released", "True", "NothingLeft")]),
        pool(),
    ],
    "invalid beside valid": [
        tier_class("bad", tiers={"dram": {}}),
        tier_class(),
        node("n1"),
        pool("bad", quota={}),
        pool(),
    ],
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_nothing_is_left_to_do_once_it_is_done(start: list[Any]) -> None:
    settle(view(*start))


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_operator_ended_anywhere_in_a_pass_is_finished_by_the_next(start: list[Any]) -> None:
    wanted = settle(view(*start))
    chance = random.Random(7)
    for _ in range(20):
        seen = view(*start)
        for _ in range(3):
            todo = actions(plan(seen))
            seen = after(seen, todo[: chance.randint(0, len(todo))])
        assert settle(seen) == wanted


def test_deleted_class_and_all_that_is_its_are_gone_in_the_end() -> None:
    start = [*STARTS["released"], *_objects()]
    end = settle(view(*start))

    assert not end.classes and not end.cache_nodes and not end.daemon_sets and not end.config_maps


def _objects() -> list[Any]:
    made = settle(view(tier_class()))
    return [
        {"kind": kind, **owned.raw, "metadata": dict(owned.raw["metadata"]) | {"name": owned.meta.name}}
        for kind, owned in (
            ("DaemonSet", made.daemon_sets["kvtier-store-flash"]),
            ("ConfigMap", made.config_maps["kvtier-store-flash"]),
        )
    ]


def test_invalid_objects_are_told_and_others_go_on() -> None:
    end = settle(view(*STARTS["invalid beside valid"]))

    def ready(status: Any) -> str:
        return next(entry.reason for entry in status.conditions if entry.type == "Ready")

    assert ready(end.classes["bad"].status) == "InvalidSpec"
    assert ready(end.pools["inference", "bad"].status) == "InvalidSpec"
    assert ready(end.classes["flash"].status) == "NodesNotReady"
    assert [entry.name for entry in end.cache_nodes["n1"].spec.pools] == ["chat"]  # type: ignore[union-attr]
    assert list(end.daemon_sets) == ["kvtier-store-flash"]


def test_refused_object_reaches_the_status_of_its_class() -> None:
    todo = plan(view(tier_class()))
    (apply,) = todo[Stage.CONFIGURATION]
    told = decide(view(tier_class()), {}, {apply.step.target: "403: forbidden"}, SETTINGS, NOW)

    (status,) = [action.step for action in told[Stage.STATUSES] if isinstance(action.step, Apply)]
    degraded = next(entry for entry in status.body["status"]["conditions"] if entry["type"] == "Degraded")
    assert (degraded["reason"], degraded["message"]) == (
        "ApplyFailed",
        "ConfigMap kvtier-system/kvtier-store-flash is refused by the API server: 403: forbidden",
    )


def test_a_pass_over_thousands_of_nodes_does_nothing_when_nothing_changed() -> None:
    names = [f"n{number}" for number in range(3000)]
    start = view(
        tier_class(),
        pool(),
        *(node(name) for name in names),
        *(cache_node(name, conditions=SERVING) for name in names),
        *(pod(name) for name in names),
    )

    assert actions(plan(settle(start))) == []
