from __future__ import annotations

from typing import Any

import pytest
from kvtier_operator.plan import pods_by_node
from kvtier_operator.status.deletion import deleting_status

from tests.unit.operator.build import NOW, ago, cache_node, condition, node, pod, tier_class, view

DRAINED = condition("Drained", "True", "Flushed")
BLOCKED = condition("Released", "False", "ReleaseBlocked", "/mnt/nvme0/kvtier: Read-only file system")


def told(*entries: Any, deleting: str) -> dict[str, tuple[str, str, str]]:
    subject = tier_class(
        deleting=deleting, status={"nodes": {"desired": 1, "ready": 1, "updated": 1, "summary": "1/1"}}
    )
    seen = view(subject, *entries)
    status = deleting_status(subject, seen, pods_by_node(seen), NOW)
    assert status.nodes is not None and status.nodes.summary == "1/1"
    return {entry.type: (entry.status, entry.reason, entry.message) for entry in status.conditions}


@pytest.mark.parametrize(
    ("entries", "waiting"),
    [
        pytest.param(
            [node(), cache_node(drain=True), pod()], "waits until the store has drained on n1", id="not drained"
        ),
        pytest.param(
            [node(), cache_node(drain=True, conditions=[DRAINED]), pod()],
            "waits until kvtier-node has cleaned up on n1",
            id="not released",
        ),
        pytest.param([], "its last objects are being removed", id="nearly gone"),
    ],
)
def test_class_being_deleted_says_what_it_waits_for(entries: list[Any], waiting: str) -> None:
    status = told(*entries, deleting=ago(seconds=30))

    assert status["Ready"] == ("False", "Draining", f"the class is being deleted: {waiting}")
    assert status["Progressing"] == ("True", "Draining", waiting)
    assert status["Degraded"][:2] == ("False", "AsExpected")


@pytest.mark.parametrize(
    ("entries", "deleting", "message"),
    [
        pytest.param(
            [node(), cache_node(drain=True, conditions=[DRAINED, BLOCKED])],
            ago(seconds=5),
            "node n1 cannot be cleaned: /mnt/nvme0/kvtier: Read-only file system",
            id="release blocked",
        ),
        pytest.param(
            [node(ready=False), node("n2"), cache_node(drain=True), cache_node("n2", drain=True)],
            ago(minutes=3),
            "nodes that are not Ready in Kubernetes cannot be cleaned: n1; bring them back, or delete the Node objects "
            "of machines that are gone for good",
            id="node down",
        ),
        pytest.param(
            [node(), cache_node(drain=True), pod()],
            ago(minutes=3),
            "nodes not cleaned yet: n1; read the logs of the store and of the kvtier-node pod there",
            id="slow",
        ),
    ],
)
def test_blocked_deletion_says_what_blocks_it(entries: list[Any], deleting: str, message: str) -> None:
    assert told(*entries, deleting=deleting)["Degraded"] == ("True", "DeletionBlocked", message)
