"""What each pool is granted on a node of its class. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from kvtier_crds.models import CacheNodeSpec, CachePoolSpec, GrantedServiceAccount, NodePool, PoolQuota, Tiers

from kvtier_operator.names import MAX_POOLS_PER_NODE
from kvtier_operator.quantities import parse_bytes
from kvtier_operator.view.facts import PoolFacts, View

EVERY_ACCOUNT: Final = "*"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def pools_by_class(view: View) -> Mapping[str, list[PoolFacts]]:
    """Readable pools by the class they name, oldest first; more than a node can have are left out."""
    grouped: dict[str, list[PoolFacts]] = defaultdict(list)
    for pool in view.pools.values():
        if pool.spec is not None and pool.meta.deleting_since is None:
            grouped[pool.spec.tier_class].append(pool)
    return {name: sorted(pools, key=_age)[:MAX_POOLS_PER_NODE] for name, pools in grouped.items()}


def grant(pool: PoolFacts, tiers: Tiers) -> NodePool:
    """The pool's entry in the spec of a node with those tiers.

    A quota above what the tier has is granted as far as it goes: taking the pool out would purge it.
    """
    assert pool.spec is not None
    return NodePool(
        uid=pool.meta.uid,
        namespace=pool.meta.namespace,
        name=pool.meta.name,
        quota=_granted_quota(pool.spec.quota, tiers),
        service_accounts=_granted_accounts(pool.spec, pool.meta.namespace),
        eviction_policy=pool.spec.eviction_policy,
        ttl=pool.spec.ttl,
        nvme=pool.spec.nvme,
        restore=pool.spec.restore,
    )


def unreadable_grants(view: View, present: CacheNodeSpec | None) -> list[NodePool]:
    """Entries that stay as they are, since their pool exists but its stored spec cannot be read."""
    unreadable = {
        pool.meta.uid for pool in view.pools.values() if pool.spec is None and pool.meta.deleting_since is None
    }
    return [entry for entry in present.pools if entry.uid in unreadable] if present and unreadable else []


def _age(pool: PoolFacts) -> tuple[datetime, str]:
    return (pool.meta.created or _EPOCH, pool.meta.uid)


def _granted_quota(quota: PoolQuota, tiers: Tiers) -> PoolQuota:
    nvme = _smaller(quota.nvme, tiers.nvme.capacity_per_node) if quota.nvme and tiers.nvme else None
    return PoolQuota(dram=_smaller(quota.dram, tiers.dram.capacity_per_node), nvme=nvme)


def _smaller(quota: str, capacity: str) -> str:
    return quota if parse_bytes(quota) <= parse_bytes(capacity) else capacity


def _granted_accounts(spec: CachePoolSpec, namespace: str) -> list[GrantedServiceAccount]:
    if not spec.service_accounts:
        return [GrantedServiceAccount(namespace=namespace, name=EVERY_ACCOUNT)]
    return [
        GrantedServiceAccount(namespace=account.namespace or namespace, name=account.name)
        for account in spec.service_accounts
    ]
