"""CachePool.status: figures over the nodes that serve it, and conditions. Pure.

A quota that its class cannot give is granted as far as it goes, so that nothing is purged by a slip, and said
to be wrong: Ready is False until the quota or the class is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import CachePoolSpec, CachePoolStatus, NodePoolStatus, Tiers
from kvtier_crds.words import Verdict

from kvtier_operator.names import MAX_POOLS_PER_NODE
from kvtier_operator.quantities import parse_bytes
from kvtier_operator.status.conditions import false, stamp, true
from kvtier_operator.status.sums import Asked, ratio, sum_tiers
from kvtier_operator.status.words import count, names
from kvtier_operator.view.facts import CacheNodeFacts, ClassFacts, PoolFacts, View


@dataclass(frozen=True)
class ReadyNodes:
    """The nodes of a class whose store serves, and what each pool has there."""

    names: list[str] = field(default_factory=list)
    shares: defaultdict[str, dict[str, NodePoolStatus]] = field(default_factory=lambda: defaultdict(dict))
    """By pool UID, by node."""

    def add(self, cache_node: CacheNodeFacts) -> None:
        """Count one more node in."""
        self.names.append(cache_node.meta.name)
        for share in cache_node.status.pools:
            self.shares[share.uid][cache_node.meta.name] = share


@dataclass(frozen=True)
class Granted:
    """How far a pool's wishes fit into its nodes' objects."""

    pool: bool = True
    """Whether it is among the pools that the class's nodes get."""
    accounts_left_out: int = 0
    """Of its service accounts, from the end of the list."""


def pool_status(pool: PoolFacts, view: View, nodes: ReadyNodes, granted: Granted, now: datetime) -> CachePoolStatus:
    """The status of a pool whose stored spec can be read. `nodes`: those of its class."""
    assert pool.spec is not None
    shares = nodes.shares.get(pool.meta.uid, {})
    fault = _fault(pool.spec, view.classes.get(pool.spec.tier_class), granted)
    ready = fault or _serving(pool.spec, nodes.names, shares)
    degraded = (
        true(ConditionType.DEGRADED, fault.reason, fault.message)
        if fault and fault.reason is not Reason.DRAINING
        else false(ConditionType.DEGRADED, Reason.AS_EXPECTED, "nothing needs attention")
    )
    previous = pool.status.conditions if pool.status else []
    return CachePoolStatus(
        observed_generation=pool.meta.generation,
        nodes=len(shares),
        blocks=sum(share.blocks for share in shares.values()),
        tiers=sum_tiers(share.tiers for share in shares.values()),
        hit_ratio=ratio(sum((Asked(share.recent_asked, share.recent_hit) for share in shares.values()), Asked())),
        conditions=stamp([ready, degraded], previous, pool.meta.generation, now),
    )


def invalid_pool_status(pool: PoolFacts, now: datetime) -> CachePoolStatus:
    """The status of a pool whose stored spec does not fit; the rest of it stays as it was."""
    message = f"the stored spec cannot be read, so the grants of this pool stay as they are: {pool.fault}; correct it"
    verdicts = [
        false(ConditionType.READY, Reason.INVALID_SPEC, message),
        true(ConditionType.DEGRADED, Reason.INVALID_SPEC, message),
    ]
    kept = pool.status or CachePoolStatus()
    conditions = stamp(verdicts, kept.conditions, pool.meta.generation, now)
    return kept.model_copy(update={"conditions": conditions, "observed_generation": pool.meta.generation})


def _fault(spec: CachePoolSpec, tier_class: ClassFacts | None, granted: Granted) -> Verdict | None:
    """What its spec and its class do not agree on."""
    name = spec.tier_class
    if tier_class is None:
        message = f"TierClass {name} does not exist; create it, or create the pool again with another spec.tierClass"
        return false(ConditionType.READY, Reason.TIER_CLASS_NOT_FOUND, message)
    if tier_class.deleting:
        message = f"TierClass {name} is being deleted; create the pool again in another class"
        return false(ConditionType.READY, Reason.DRAINING, message)
    if tier_class.spec is None:
        message = f"the stored spec of TierClass {name} cannot be read; correct it there"
        return false(ConditionType.READY, Reason.INVALID_SPEC, message)
    if not granted.pool:
        message = f"TierClass {name} has {MAX_POOLS_PER_NODE} older pools, which is all that a node takes; delete some"
        return false(ConditionType.READY, Reason.TOO_MANY_POOLS, message)
    if granted.accounts_left_out:
        asked = len(spec.service_accounts)
        message = (
            f"the service accounts of all pools of TierClass {name} are more than a node's object holds, so the last "
            f"{granted.accounts_left_out} of this pool's {asked} are not granted; name fewer in spec.serviceAccounts, "
            "or `*` for a namespace of your own"
        )
        return false(ConditionType.READY, Reason.TOO_MANY_ACCOUNTS, message)
    return _quota_fault(spec, name, tier_class.spec.tiers)


def _quota_fault(spec: CachePoolSpec, name: str, tiers: Tiers) -> Verdict | None:
    if spec.quota.nvme and tiers.nvme is None:
        message = (
            f"spec.quota.nvme is set, but TierClass {name} has no nvme tier; take spec.quota.nvme out, or add "
            "spec.tiers.nvme to the class"
        )
        return false(ConditionType.READY, Reason.NVME_NOT_IN_CLASS, message)
    limits = [("dram", spec.quota.dram, tiers.dram.capacity_per_node)]
    if spec.quota.nvme and tiers.nvme:
        limits.append(("nvme", spec.quota.nvme, tiers.nvme.capacity_per_node))
    for tier, quota, capacity in limits:
        if parse_bytes(quota) > parse_bytes(capacity):
            message = (
                f"spec.quota.{tier} {quota} is above the {capacity} that TierClass {name} has on each node; lower "
                f"the quota, or raise spec.tiers.{tier}.capacityPerNode of the class; until then {capacity} is granted"
            )
            return false(ConditionType.READY, Reason.QUOTA_EXCEEDS_CAPACITY, message)
    return None


def _serving(spec: CachePoolSpec, ready_nodes: Sequence[str], serving: Collection[str]) -> Verdict:
    if not ready_nodes:
        message = f"no node of TierClass {spec.tier_class} is ready; see `kubectl describe tierclass {spec.tier_class}`"
        return false(ConditionType.READY, Reason.NODES_NOT_SERVING, message)
    missing = sorted(name for name in ready_nodes if name not in serving)
    if missing:
        message = f"of {count(len(ready_nodes), 'ready node')}, these have not taken the pool up yet: {names(missing)}"
        return false(ConditionType.READY, Reason.NODES_NOT_SERVING, message)
    message = f"every ready node serves it ({len(serving)} of {len(serving)})"
    return true(ConditionType.READY, Reason.ALL_NODES_SERVING, message)
