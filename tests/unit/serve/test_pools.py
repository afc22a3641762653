"""CacheNode.spec to what the store is told."""

from __future__ import annotations

import pytest
from kvtier_agent.control import PoolGrant, ServiceAccount, SetPools
from kvtier_agent.quantities import parse_duration
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


def test_policies_of_the_pool_are_told_in_the_stores_words() -> None:
    chosen = {
        "evictionPolicy": "lru",
        "ttl": "1h30m",
        "nvme": {"write": "back", "admission": "reused"},
        "restore": "always",
    }
    told = decide_pools(cache_node(pools=(POOL | chosen, POOL | {"uid": "other"})), "gpu")
    assert told is not None
    chosen_grant, plain = told.pools
    assert (chosen_grant.eviction, chosen_grant.ttl_s, chosen_grant.restore) == ("lru", 5400, "always")
    assert (chosen_grant.write, chosen_grant.admission) == ("back", "reused")
    assert (plain.eviction, plain.ttl_s, plain.restore) == ("default", 0, "auto")
    assert (plain.write, plain.admission) == ("through", "all")


def test_drain_is_told() -> None:
    told = decide_pools(cache_node(pools=(POOL,), drain=True), "gpu")
    assert told is not None
    assert told.drain


def test_node_without_object_or_of_another_class_purges_nothing() -> None:
    assert decide_pools(None, "gpu") is None
    assert decide_pools(cache_node(pools=()), "cpu") is None


def test_fields_of_a_newer_release_are_passed_over() -> None:
    told = decide_pools(cache_node(pools=(POOL | {"shape": "round"},)), "gpu")
    assert told is not None
    assert len(told.pools) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("36h", 129600), ("1h30m", 5400), ("90s", 90), ("1h1s", 3601), ("0m", 0)]
)
def test_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1d", "1.5h", "30m1h", "5", "1h ", "-1h"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)
