from __future__ import annotations

from typing import Any

import pytest
from kvtier_crds.models import Condition
from kvtier_operator.desired.actions import Post
from kvtier_operator.objects import CACHE_POOLS, TIER_CLASSES
from kvtier_operator.status.events import changes, event, node_changes

from tests.unit.operator.build import NOW, condition, pool, tier_class

Object = dict[str, Any]


def read(*entries: Object) -> list[Condition]:
    return [Condition.model_validate(entry) for entry in entries]


READY = condition("Ready", "True", "AllNodesReady", "all serve")
NOT_READY = condition("Ready", "False", "NodesNotReady", "n1 does not")
NO_ROOM = condition("Degraded", "True", "NoRoom", "n1 is full")
FINE = condition("Degraded", "False", "AsExpected", "fine")
ROLLING = condition("Progressing", "True", "RollingOut", "n1")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param([], [READY], [("Normal", "AllNodesReady", "all serve")], id="ready at first"),
        pytest.param([NOT_READY], [READY], [("Normal", "AllNodesReady", "all serve")], id="becomes ready"),
        pytest.param([READY], [READY], [], id="stays ready"),
        pytest.param([], [NOT_READY], [], id="never was ready"),
        pytest.param([READY], [NOT_READY], [("Warning", "NodesNotReady", "n1 does not")], id="lost"),
        pytest.param([READY], [NOT_READY, ROLLING], [], id="lost while rolling out"),
        pytest.param([FINE], [NO_ROOM], [("Warning", "NoRoom", "n1 is full")], id="degraded"),
        pytest.param([NO_ROOM], [NO_ROOM | {"message": "n2 is full"}], [], id="same cause, other words"),
        pytest.param(
            [NO_ROOM], [NO_ROOM | {"reason": "NodeTainted"}], [("Warning", "NodeTainted", "n1 is full")], id="new cause"
        ),
        pytest.param([NO_ROOM], [FINE], [], id="mended"),
    ],
)
def test_change_that_matters_is_told_once(before: list[Object], after: list[Object], told: list[Any]) -> None:
    assert list(changes(read(*before), read(*after))) == told


def test_nodes_that_join_or_leave_are_told_by_name() -> None:
    assert list(node_changes({"flash": ["n2", "n1"]}, {"flash": ["n3"], "other": ["n4"]}, "flash")) == [
        ("Normal", "NodeAdded", "added: n1 and n2"),
        ("Normal", "NodeDraining", "begins to drain: n3"),
    ]


def posted(meta: Any, change: tuple[str, str, str], resource: Any = TIER_CLASSES) -> Post:
    step = event(resource, meta, change, "operator-1", NOW).step
    assert isinstance(step, Post)
    return step


def test_same_decision_on_the_same_version_makes_the_same_name() -> None:
    change = ("Warning", "NoRoom", "n1 is full")
    names = [posted(tier_class().meta, change).target.name for _ in range(2)]
    other = posted(tier_class().meta, ("Warning", "NoRoom", "n2 is full")).target.name

    assert names[0] == names[1] != other


@pytest.mark.parametrize(
    ("subject", "resource", "namespace"),
    [(tier_class(), TIER_CLASSES, "default"), (pool(), CACHE_POOLS, "inference")],
    ids=["cluster", "namespaced"],
)
def test_event_lies_where_kubectl_looks_for_it(subject: Any, resource: Any, namespace: str) -> None:
    step = posted(subject.meta, ("Normal", "Any", "x" * 2000), resource)

    assert step.target.namespace == step.body["metadata"]["namespace"] == namespace
    assert len(step.body["message"]) == 1024
