"""TierClass.status: each failure that a user can cause, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kvtier_crds.models import Condition, TierClassStatus
from kvtier_operator.desired.ownership import decide_owners
from kvtier_operator.plan import nodes_without_room, pods_by_node
from kvtier_operator.status.tier_class import DEGRADED_ORDER, ClassInput, class_status
from kvtier_operator.view.facts import RoomFacts

from tests.unit.operator.build import NOW, SERVING, ago, cache_node, condition, node, pod, tier_class, view

Object = dict[str, Any]
TAINT = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
FULL = {"n1": RoomFacts({"memory": 10 << 30, "cpu": 1000})}
CURRENT = "current"


def judge(
    *entries: Any, rooms: Mapping[str, RoomFacts] | None = None, failures: Sequence[str] = (), of: str = "flash"
) -> TierClassStatus:
    seen = view(*entries)
    given = ClassInput(pods_by_node(seen), CURRENT, rooms or {}, failures)
    return class_status(seen.classes[of], seen, decide_owners(seen), given, NOW)


def conditions(status: TierClassStatus) -> dict[str, Condition]:
    return {entry.type: entry for entry in status.conditions}


def told(status: TierClassStatus, kind: str) -> tuple[str, str, str]:
    entry = conditions(status)[kind]
    return entry.status, entry.reason, entry.message


HEALTHY = (tier_class(), node(), cache_node(conditions=SERVING), pod(spec_hash=CURRENT))


def test_class_whose_nodes_all_serve_is_ready_and_done() -> None:
    status = judge(*HEALTHY)

    assert status.nodes is not None
    assert status.nodes.model_dump() == {"desired": 1, "ready": 1, "updated": 1, "summary": "1/1"}
    assert told(status, "Ready") == ("True", "AllNodesReady", "every node serves (1 of 1)")
    assert told(status, "Progressing") == ("False", "RolledOut", "every node has the current specification")
    assert told(status, "Degraded") == ("False", "AsExpected", "nothing needs attention")
    assert status.observed_generation == 1


def test_figures_are_summed_over_ready_nodes_only() -> None:
    tiers = {"dram": {"capacity": "8Gi", "used": "1536Mi"}, "nvme": {"capacity": "100Gi", "used": "1Gi"}}
    share = {"uid": "u", "blocks": 1, "tiers": {}, "recentAsked": 200, "recentHit": 175}
    figures = {"tiers": tiers, "pools": [share]}
    nodes = [node("n1"), node("n2"), node("n3")]
    up = [cache_node(name, conditions=SERVING, status=figures) for name in ("n1", "n2", "n3")]

    status = judge(tier_class(), *nodes, *up, pod("n1"), pod("n2"), pod("n3", ready=False))

    assert status.tiers is not None
    assert status.tiers.model_dump() == {
        "dram": {"capacity": "16Gi", "used": "3Gi"},
        "nvme": {"capacity": "200Gi", "used": "2Gi"},
    }
    assert status.hit_ratio == "87%"
    assert status.nodes is not None and status.nodes.summary == "2/3"


def test_hit_ratio_without_requests_is_a_dash() -> None:
    assert judge(*HEALTHY).hit_ratio == "-"


NO_MATCH = [
    pytest.param({"gpu": "yes"}, [], "the cluster has no nodes", id="no nodes"),
    pytest.param({"gpus": "yes"}, [node()], "no node has the label gpus; label the nodes, or change "
        "spec.nodeSelector", id="unknown key"),
    pytest.param({"gpu": "true"}, [node(), node("n2", labels={"gpu": "no"})], "the label gpu exists with no and yes, "
        "not with true; label the nodes, or change spec.nodeSelector", id="other values"),
    pytest.param({"gpu": "yes", "zone": "a"}, [node(), node("n2", labels={"zone": "a"})], "each label is on some node, "
        "but no node has all of them; label the nodes, or change spec.nodeSelector", id="never together"),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "nodes", "hint"), NO_MATCH)
def test_selector_that_selects_nothing_is_explained(selector: Object, nodes: list[Any], hint: str) -> None:
    wanted = ",".join(f"{key}={value}" for key, value in sorted((selector | {"kubernetes.io/os": "linux"}).items()))

    assert told(judge(tier_class(selector=selector), *nodes), "Ready") == (
        "False",
        "NoNodesSelected",
        f"no node matches spec.nodeSelector ({wanted}): {hint}",
    )


FINDINGS = [
    pytest.param(
        [tier_class(), node(taints=[TAINT]), cache_node()],
        "NodeTainted",
        "node n1 has the taint dedicated=db:NoSchedule, which spec.tolerations does not tolerate; add the toleration, "
        "take the taint off, or leave the node out of spec.nodeSelector",
        id="tainted node",
    ),
    pytest.param(
        [tier_class(), node(), cache_node(), pod(ready=False, unschedulable="0/1 nodes: 1 Insufficient memory")],
        "NoRoom",
        "node n1 has no room for the store: it requests 9Gi of memory, 6Gi of the node's 16Gi are free, 3Gi are "
        "missing; lower spec.tiers.dram.capacityPerNode, or move other pods away",
        id="no room",
    ),
    pytest.param(
        [
            tier_class(),
            node(),
            cache_node(conditions=SERVING[:1]),
            pod(ready=False, unschedulable="0/1 nodes: bad volume", requests={}),
        ],
        "StoreFailing",
        "pod kvtier-store-flash-n1 cannot be placed on node n1: 0/1 nodes: bad volume",
        id="not placed for another reason",
    ),
    pytest.param(
        [
            tier_class(),
            node(),
            cache_node(
                conditions=[
                    condition("Preflight", "False", "DevicePathMissing", "/mnt/nvme0 is missing on n1; mount the disk")
                ]
            ),
            pod(ready=False, waiting={"reason": "ContainerCreating"}),
        ],
        "DevicePathMissing",
        "/mnt/nvme0 is missing on n1; mount the disk",
        id="device path missing",
    ),
    pytest.param(
        [tier_class(), node(), cache_node(conditions=[condition("Preflight", "False", "SomethingNew", "odd")])],
        "ArenaUnavailable",
        "node n1: odd",
        id="preflight reason of another release",
    ),
    pytest.param(
        [tier_class(), node(), cache_node(created=ago(minutes=2))],
        "NodeAgentUnavailable",
        "kvtier-node has not reported from node n1; see that its DaemonSet has a running pod there (its nodeSelector "
        "and tolerations) and read that pod's logs",
        id="no kvtier-node",
    ),
    pytest.param(
        [
            tier_class(),
            node(),
            cache_node(conditions=SERVING[:1]),
            pod(
                ready=False,
                waiting={"reason": "CrashLoopBackOff", "message": "back-off"},
                ended={"exitCode": 2, "message": "/etc/kvtier/store.yaml: bad `movers`"},
            ),
        ],
        "StoreFailing",
        "pod kvtier-system/kvtier-store-flash-n1 on node n1 fails: CrashLoopBackOff with exit code 2: "
        "/etc/kvtier/store.yaml: bad `movers`; see `kubectl -n kvtier-system logs kvtier-store-flash-n1 --previous`",
        id="crash loop",
    ),
    pytest.param(
        [tier_class(), node(ready=False), cache_node(conditions=SERVING), pod()],
        "NodeNotReady",
        "node n1 is not Ready in Kubernetes; see `kubectl describe node n1`, and delete the Node object if the machine "
        "is gone for good",
        id="node down",
    ),
]


@pytest.mark.parametrize(("entries", "reason", "message"), FINDINGS)
def test_failure_on_a_node_is_told_with_what_to_do(entries: list[Any], reason: str, message: str) -> None:
    status = judge(*entries, rooms=FULL)

    assert told(status, "Degraded") == ("True", reason, message)
    assert told(status, "Ready") == ("False", "NodesNotReady", f"1 of 1 node does not serve: {message}")


DEGRADED = condition("Degraded", "True", "NoDirectIo", "disk0 takes no direct I/O; use ext4 or xfs")


@pytest.mark.parametrize(
    ("entries", "reason", "message"),
    [
        pytest.param(
            [tier_class(), node(), cache_node(conditions=[*SERVING, DEGRADED]), pod()],
            "NoDirectIo",
            "node n1: disk0 takes no direct I/O; use ext4 or xfs",
            id="store degraded",
        ),
        pytest.param(
            [
                tier_class(),
                node(),
                cache_node(conditions=[condition("Preflight", "False", "DevicePathMissing", "no /b"), SERVING[1]]),
                pod(),
            ],
            "DevicePathMissing",
            "node n1: no /b",
            id="device missing beside a serving store",
        ),
    ],
)
def test_failure_beside_a_serving_store_leaves_it_ready(entries: list[Any], reason: str, message: str) -> None:
    status = judge(*entries)

    assert told(status, "Degraded") == ("True", reason, message)
    assert conditions(status)["Ready"].status == "True"


def test_refused_object_is_told_in_the_api_servers_words() -> None:
    status = judge(*HEALTHY, failures=["DaemonSet kv/kvtier-store-flash is refused by the API server: 422: no"])

    assert told(status, "Degraded") == (
        "True",
        "ApplyFailed",
        "DaemonSet kv/kvtier-store-flash is refused by the API server: 422: no",
    )


@pytest.mark.parametrize(
    ("taint", "tolerations", "keeps_out"),
    [
        ({"key": "a", "effect": "NoSchedule"}, [], True),
        ({"key": "a", "effect": "NoExecute"}, [], True),
        ({"key": "a", "effect": "PreferNoSchedule"}, [], False),
        ({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, [], False),
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, [], False),
        ({"key": "a", "effect": "NoSchedule"}, [{"operator": "Exists"}], False),
        ({"key": "a", "effect": "NoSchedule"}, [{"key": "a", "operator": "Exists"}], False),
        ({"key": "a", "value": "b", "effect": "NoSchedule"}, [{"key": "a", "value": "b"}], False),
        ({"key": "a", "value": "b", "effect": "NoSchedule"}, [{"key": "a", "value": "c"}], True),
        ({"key": "a", "effect": "NoSchedule"}, [{"key": "a", "operator": "Exists", "effect": "NoExecute"}], True),
    ],
)
def test_taint_counts_only_where_it_keeps_the_pod_out(
    taint: Object, tolerations: list[Object], keeps_out: bool
) -> None:
    status = judge(tier_class(tolerations=tolerations), node(taints=[taint]), cache_node())

    assert (conditions(status)["Degraded"].reason == "NodeTainted") is keeps_out


def test_taint_beside_a_running_store_is_no_failure() -> None:
    status = judge(tier_class(), node(taints=[TAINT]), cache_node(conditions=SERVING), pod(spec_hash=CURRENT))

    assert conditions(status)["Degraded"].status == "False"


def test_contested_nodes_name_nodes_and_winner() -> None:
    classes = [tier_class("old", created=ago(days=9)), tier_class("flash", created=ago(days=1))]
    message = (
        "TierClass old, created earlier, has n1 and n2, which flash selects too; narrow spec.nodeSelector of one of "
        "them"
    )
    status = judge(*classes, node("n1"), node("n2"))

    assert told(status, "Ready") == ("False", "NodesContested", message)
    assert told(status, "Degraded") == ("True", "NodesContested", message)
    assert status.nodes is not None and status.nodes.desired == 0


def test_nodes_with_one_failure_are_named_together() -> None:
    nodes = [node(f"n{number}", taints=[TAINT]) for number in range(1, 8)]
    message = conditions(judge(tier_class(), *nodes))["Degraded"].message

    assert message.startswith("node n1 has the taint")
    assert message.endswith("(likewise: n2, n3, n4, n5, n6 and 1 more)")


def test_first_cause_in_the_stated_order_is_told() -> None:
    entries = [
        tier_class(),
        node("n1", taints=[TAINT]),
        node("n2"),
        cache_node("n2", conditions=[condition("Preflight", "False", "DiskSpaceShort", "full")]),
    ]

    assert conditions(judge(*entries))["Degraded"].reason == "NodeTainted"
    assert len(set(DEGRADED_ORDER)) == len(DEGRADED_ORDER)


FRESH = cache_node(created=ago(seconds=20))
RECOVERING = condition("Ready", "False", "Recovering", "reads 3 of 9 segments")
WAITING = [
    pytest.param([node()], "node n1 is being added", id="no cache node"),
    pytest.param([node(), FRESH], "node n1 has no store pod yet", id="no pod"),
    pytest.param([node(), FRESH, pod(ready=False)], "the store's pod on node n1 is not ready yet", id="pod not ready"),
    pytest.param(
        [node(), cache_node(conditions=[SERVING[0], RECOVERING]), pod()],
        "node n1: reads 3 of 9 segments",
        id="store recovering",
    ),
    pytest.param(
        [node(), cache_node(of="gone", drain=True)],
        "node n1 is still being drained for TierClass gone",
        id="previous class drains",
    ),
]


@pytest.mark.parametrize(("entries", "cause"), WAITING)
def test_what_is_merely_under_way_needs_nobody(entries: list[Any], cause: str) -> None:
    status = judge(tier_class(), *entries)

    assert told(status, "Ready") == ("False", "NodesNotReady", f"1 of 1 node does not serve: {cause}")
    assert conditions(status)["Degraded"].status == "False"


def test_rollout_is_progress_until_every_node_has_it() -> None:
    entries = [cache_node(name, conditions=SERVING) for name in ("n1", "n2")]
    status = judge(tier_class(), node("n1"), node("n2"), *entries, pod("n1", spec_hash=CURRENT), pod("n2"))

    assert told(status, "Progressing") == (
        "True",
        "RollingOut",
        "of 2 nodes, these await the current specification: n2",
    )
    assert status.nodes is not None and (status.nodes.ready, status.nodes.updated) == (2, 1)


def test_node_that_leaves_is_progress() -> None:
    leaving = cache_node("n2", drain=True)
    status = judge(*HEALTHY, node("n2", labels={}), leaving)

    assert told(status, "Progressing") == ("True", "Draining", "nodes that no longer belong here are being drained: n2")


def test_transition_time_moves_only_with_the_status() -> None:
    before = {
        "conditions": [
            condition("Ready", "True", "OldReason", lastTransitionTime=ago(days=3)),
            condition("Degraded", "True", "NoRoom", lastTransitionTime=ago(days=3)),
        ]
    }
    status = judge(tier_class(status=before), *HEALTHY[1:])

    times = {entry.type: (NOW - entry.last_transition_time).days for entry in status.conditions}
    assert times == {"Ready": 3, "Degraded": 0, "Progressing": 0}


def test_pods_are_listed_only_where_one_found_no_room() -> None:
    pods = [pod("n1"), pod("n2", unschedulable="0/2 nodes", ready=False), pod("gone", unschedulable="0/2", ready=False)]

    assert nodes_without_room(view(node("n1"), node("n2"), *pods)) == ["n2"]
