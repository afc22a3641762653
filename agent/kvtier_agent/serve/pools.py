"""What the store must serve, by the node's CacheNode. Pure."""

from __future__ import annotations

from kvtier_crds.models import NodePool, PoolNvme

from kvtier_agent.cachenode import CacheNode
from kvtier_agent.config import parse_quantity
from kvtier_agent.control import PoolGrant, ServiceAccount, SetPools
from kvtier_agent.quantities import parse_duration


def decide_pools(cache_node: CacheNode | None, tier_class: str) -> SetPools | None:
    """What the store is told; None: nothing, and it stays with what it serves.

    A pool left out is purged for good. So without an object, or with one that gives the node to another
    class, the store is told nothing: neither says that a pool was deleted.
    """
    if cache_node is None or cache_node.spec.tier_class != tier_class:
        return None
    spec = cache_node.spec
    pools = tuple(_grant(pool) for pool in spec.pools)
    return SetPools(generation=cache_node.generation, pools=pools, drain=spec.drain)


def _grant(pool: NodePool) -> PoolGrant:
    nvme = pool.nvme or PoolNvme()
    return PoolGrant(
        uid=pool.uid,
        namespace=pool.namespace,
        name=pool.name,
        dram_quota=parse_quantity(pool.quota.dram),
        nvme_quota=parse_quantity(pool.quota.nvme) if pool.quota.nvme else 0,
        service_accounts=tuple(
            ServiceAccount(account.namespace or pool.namespace, account.name) for account in pool.service_accounts
        ),
        eviction=pool.eviction_policy.value,
        write=nvme.write.value,
        admission=nvme.admission.value,
        ttl_s=parse_duration(pool.ttl) if pool.ttl else 0,
        restore=pool.restore.value,
    )
