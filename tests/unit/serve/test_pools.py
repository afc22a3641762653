"""CacheNode.spec to what the store is told."""

from __future__ import annotations

from kvtier_agent.control import PoolGrant, ServiceAccount, SetPools
from kvtier_agent.serve.pools import decide_pools

from tests.unit.node.cache_nodes import cache_node

POOL = {
    "uid": "pool-uid-1",
    "namespace": "team-a",
    "name": "chat",
    "quota": {"dram": "64Mi", "nvme": "1.5Gi"},
    "serviceAccounts": [{"namespace": "team-b", "name": "engine"}, {"name": "*"}],
}


def test_pools_of_the_spec_are_told_in_bytes_with_namespaces() -> None:
    assert decide_pools(cache_node(pools=(POOL,)), "gpu") == SetPools(
        generation=3,
        pools=(
            PoolGrant(
                uid="pool-uid-1",
                namespace="team-a",
                name="chat",
                dram_quota=64 << 20,
                nvme_quota=1536 << 20,
                service_accounts=(ServiceAccount("team-b", "engine"), ServiceAccount("team-a", "*")),
            ),
        ),
    )


def test_pool_without_nvme_quota_has_none_of_it() -> None:
    told = decide_pools(cache_node(pools=(POOL | {"quota": {"dram": "64Mi"}},)), "gpu")
    assert told is not None
    assert told.pools[0].nvme_quota == 0


def test_drain_is_told() -> None:
    told = decide_pools(cache_node(pools=(POOL,), drain=True), "gpu")
    assert told is not None
    assert told.drain


def test_node_without_object_or_of_another_class_purges_nothing() -> None:
    assert decide_pools(None, "gpu") is None
    assert decide_pools(cache_node(pools=()), "cpu") is None


def test_fields_of_a_newer_release_are_passed_over() -> None:
    told = decide_pools(cache_node(pools=(POOL | {"ttl": "1h"},)), "gpu")
    assert told is not None
    assert len(told.pools) == 1
