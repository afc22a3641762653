"""Objects as the API server sends them -> facts."""

from __future__ import annotations

from typing import Any

import pytest
from kvtier_operator.view.read import read_cache_node, read_class, read_node, read_pod, read_pool
from kvtier_operator.view.requests import pod_requests, sum_requests

from tests.unit.operator.build import DRAM_ONLY, meta

Object = dict[str, Any]


def pod(status: Object, spec: Object | None = None) -> Object:
    return {"metadata": meta("p", namespace="kv", labels={"kvtier.io/tier-class": "flash"}), "spec": spec or {}} | {
        "status": status
    }


def test_class_that_does_not_fit_is_read_with_its_fault() -> None:
    facts = read_class({"metadata": meta("flash"), "spec": {"tiers": {"dram": {"capacityPerNode": "lots"}}}})

    assert facts.spec is None
    assert facts.fault.startswith("tiers.dram.capacityPerNode: String should match pattern")


def test_fields_of_a_newer_release_are_passed_over() -> None:
    spec = {"tierClass": "flash", "quota": {"dram": "2Gi", "fabric": "1Ti"}, "ttl": "1h"}

    assert read_pool({"metadata": meta("chat"), "spec": spec}).fault == ""


def test_cache_node_with_unreadable_status_counts_as_silent() -> None:
    spec = {"tierClass": "flash", "tiers": DRAM_ONLY, "drain": True}
    facts = read_cache_node({"metadata": meta("n1"), "spec": spec, "status": {"conditions": "none"}})

    assert facts.spec is not None and facts.drain
    assert facts.status.conditions == []


def test_cache_node_with_unreadable_spec_keeps_class_and_drain() -> None:
    facts = read_cache_node({"metadata": meta("n1"), "spec": {"tierClass": "flash", "drain": True}})

    assert (facts.spec, facts.tier_class, facts.drain) == (None, "flash", True)


def test_node_taint_reads_as_kubectl_prints_it() -> None:
    taints = [{"key": "gpu", "value": "a100", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoExecute"}]
    facts = read_node({"metadata": meta("n1"), "spec": {"taints": taints}, "status": {}})

    assert [str(taint) for taint in facts.taints] == ["gpu=a100:NoSchedule", "spot:NoExecute"]
    assert not facts.ready


@pytest.mark.parametrize(
    ("container", "failing"),
    [
        pytest.param({"state": {"running": {}}}, "", id="running"),
        pytest.param({"state": {"waiting": {"reason": "ContainerCreating"}}}, "", id="starting"),
        pytest.param(
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x:1"'}}},
            'ImagePullBackOff: Back-off pulling image "x:1"',
            id="image",
        ),
        pytest.param(
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                "lastState": {"terminated": {"exitCode": 2, "message": "starting\n/etc/kvtier: bad `movers`\n"}},
            },
            "CrashLoopBackOff with exit code 2: /etc/kvtier: bad `movers`",
            id="crash with last words",
        ),
        pytest.param(
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                "lastState": {"terminated": {"exitCode": 137}},
            },
            "CrashLoopBackOff with exit code 137: back-off 10s restarting",
            id="crash without a word",
        ),
    ],
)
def test_pod_failure_is_told_in_the_containers_words(container: Object, failing: str) -> None:
    assert read_pod(pod({"containerStatuses": [container]})).failing == failing


def test_pod_without_node_belongs_to_the_one_it_was_made_for() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}

    facts = read_pod(pod({"conditions": [unscheduled]}, {"affinity": affinity}))

    assert (facts.node, facts.unschedulable, facts.running) == ("n7", "0/1 nodes", False)


def test_ending_pod_is_not_ready() -> None:
    raw = pod({"conditions": [{"type": "Ready", "status": "True"}]})
    raw["metadata"]["deletionTimestamp"] = "2026-05-04T12:00:00Z"

    assert not read_pod(raw).ready


def _container(memory: str, **more: Any) -> Object:
    return {"resources": {"requests": {"memory": memory}}} | more


@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        pytest.param({"containers": [_container("1Ki"), _container("2Ki")]}, 3072, id="containers add up"),
        pytest.param(
            {"containers": [_container("1Ki")], "initContainers": [_container("5Ki")]}, 5120, id="large init container"
        ),
        pytest.param(
            {"containers": [_container("1Ki")], "initContainers": [_container("1Ki", restartPolicy="Always")]},
            2048,
            id="sidecar adds up",
        ),
        pytest.param({"containers": [_container("1Ki")], "overhead": {"memory": "1Ki"}}, 2048, id="overhead"),
    ],
)
def test_pod_requests_are_counted_as_the_scheduler_does(spec: Object, memory: int) -> None:
    assert pod_requests(spec)["memory"] == memory


def test_finished_pods_take_no_room() -> None:
    spec = {"containers": [_container("1Ki")]}
    pods = [{"spec": spec, "status": {"phase": phase}} for phase in ("Running", "Succeeded", "Failed", "Pending")]

    assert sum_requests(pods) == {"memory": 2048, "pods": 2}
