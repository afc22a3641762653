from __future__ import annotations

from typing import Any

import pytest
from kvtier_crds.models import CachePoolStatus
from kvtier_operator.status.cache_pool import Granted, ReadyNodes, invalid_pool_status, pool_status
from kvtier_operator.view.facts import CacheNodeFacts, PoolFacts

from tests.unit.operator.build import NOW, WITH_NVME, ago, cache_node, pool, tier_class, view

Object = dict[str, Any]
WHOLE = Granted()


def serving(name: str, asked: int = 10, hit: int = 5) -> CacheNodeFacts:
    share = {
        "uid": "uid-inference-chat",
        "blocks": 3,
        "tiers": {"dram": {"capacity": "2Gi", "used": "1Gi"}},
        "recentAsked": asked,
        "recentHit": hit,
    }
    return cache_node(name, status={"pools": [share]})


def judge(
    subject: PoolFacts, *entries: Any, ready: tuple[CacheNodeFacts, ...] = (), granted: Granted = WHOLE
) -> CachePoolStatus:
    nodes = ReadyNodes()
    for serving_node in ready:
        nodes.add(serving_node)
    return pool_status(subject, view(subject, *entries), nodes, granted, NOW)


def told(status: CachePoolStatus) -> dict[str, tuple[str, str, str]]:
    return {entry.type: (entry.status, entry.reason, entry.message) for entry in status.conditions}


def test_pool_on_every_ready_node_is_ready() -> None:
    status = judge(pool(), tier_class(), ready=(serving("n1"), serving("n2", asked=30, hit=30)))

    assert told(status) == {
        "Ready": ("True", "AllNodesServing", "every ready node serves it (2 of 2)"),
        "Degraded": ("False", "AsExpected", "nothing needs attention"),
    }
    assert (status.nodes, status.blocks, status.hit_ratio, status.observed_generation) == (2, 6, "87%", 1)
    assert status.tiers is not None and status.tiers.dram is not None
    assert (status.tiers.dram.capacity, status.tiers.dram.used) == ("4Gi", "2Gi")


FAULTS = [
    pytest.param(
        pool(),
        [],
        "TierClassNotFound",
        "TierClass flash does not exist; create it, or create the pool again with another spec.tierClass",
        id="no class",
    ),
    pytest.param(
        pool(quota={"dram": "2Gi", "nvme": "1Gi"}),
        [tier_class()],
        "NvmeNotInClass",
        "spec.quota.nvme is set, but TierClass flash has no nvme tier; take spec.quota.nvme out, or add "
        "spec.tiers.nvme to the class",
        id="no nvme tier",
    ),
    pytest.param(
        pool(quota={"dram": "9Gi"}),
        [tier_class()],
        "QuotaExceedsCapacity",
        "spec.quota.dram 9Gi is above the 8Gi that TierClass flash has on each node; lower the quota, or raise "
        "spec.tiers.dram.capacityPerNode of the class; until then 8Gi is granted",
        id="dram quota",
    ),
    pytest.param(
        pool(quota={"dram": "8192Mi", "nvme": "101Gi"}),
        [tier_class(tiers=WITH_NVME)],
        "QuotaExceedsCapacity",
        "spec.quota.nvme 101Gi is above the 100Gi that TierClass flash has on each node; lower the quota, or raise "
        "spec.tiers.nvme.capacityPerNode of the class; until then 100Gi is granted",
        id="nvme quota",
    ),
    pytest.param(
        pool(),
        [tier_class(tiers={"dram": {}})],
        "InvalidSpec",
        "the stored spec of TierClass flash cannot be read; correct it there",
        id="unreadable class",
    ),
]


@pytest.mark.parametrize(("subject", "entries", "reason", "message"), FAULTS)
def test_fault_between_pool_and_class_is_told_with_what_to_do(
    subject: PoolFacts, entries: list[Any], reason: str, message: str
) -> None:
    status = told(judge(subject, *entries, ready=(serving("n1"),)))

    assert status == {"Ready": ("False", reason, message), "Degraded": ("True", reason, message)}


WAITING = [
    pytest.param(
        [tier_class()], (), "NodesNotServing",
        "no node of TierClass flash is ready; see `kubectl describe tierclass flash`", id="no ready node",
    ),
    pytest.param(
        [tier_class()], (serving("n1"), cache_node("n2")), "NodesNotServing",
        "of 2 ready nodes, these have not taken the pool up yet: n2", id="one node behind",
    ),
    pytest.param(
        [tier_class(deleting=ago(minutes=1))], (), "Draining",
        "TierClass flash is being deleted; create the pool again in another class", id="class being deleted",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "ready", "reason", "message"), WAITING)
def test_what_the_pool_waits_for_degrades_nothing(
    entries: list[Any], ready: tuple[CacheNodeFacts, ...], reason: str, message: str
) -> None:
    status = told(judge(pool(), *entries, ready=ready))

    assert status["Ready"] == ("False", reason, message)
    assert status["Degraded"][:2] == ("False", "AsExpected")


def test_pool_beyond_what_a_node_takes_says_so() -> None:
    assert told(judge(pool(), tier_class(), granted=Granted(pool=False)))["Ready"][:2] == ("False", "TooManyPools")


def test_unreadable_pool_names_its_fault_and_keeps_its_figures() -> None:
    status = invalid_pool_status(pool(quota={}, status={"nodes": 4}), NOW)

    assert status.nodes == 4
    assert told(status)["Ready"] == (
        "False",
        "InvalidSpec",
        "the stored spec cannot be read, so the grants of this pool stay as they are: quota.dram: Field required; "
        "correct it",
    )
