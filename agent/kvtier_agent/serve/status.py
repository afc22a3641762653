"""CacheNode.status as the store sees it. Pure: snapshot in, status out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.words import Verdict, about, hit_ratio

from kvtier_agent.cachenode import CacheNode
from kvtier_agent.conditions import to_conditions
from kvtier_agent.control import PoolSnapshot, Snapshot, TierUse
from kvtier_agent.quantities import exact
from kvtier_agent.serve.devices import decide_degraded, device_status


def build_status(snapshot: Snapshot | None, cache_node: CacheNode, now: datetime) -> dict[str, Any]:
    """All fields of the status that the store owns. None: the store has not said anything yet."""
    verdicts = [
        decide_ready(snapshot, cache_node),
        decide_degraded(snapshot.devices if snapshot else ()),
        decide_drained(snapshot, cache_node),
    ]
    return {
        "storeVersion": version("kvtier"),
        "conditions": to_conditions(verdicts, cache_node.conditions, generation=cache_node.generation, now=now),
        **(_figures(snapshot) if snapshot else {}),
    }


def stopped_status(last: Mapping[str, Any], cache_node: CacheNode, now: datetime) -> dict[str, Any]:
    """The last status, with the word that the store has ended."""
    message = f"the store on node {cache_node.name} has ended; if it does not come back, read the logs of its pod"
    ended = Verdict(ConditionType.READY, "False", Reason.STORE_STOPPED, message)
    (condition,) = to_conditions([ended], cache_node.conditions, generation=cache_node.generation, now=now)
    others = [present for present in last["conditions"] if present["type"] != ConditionType.READY]
    return {**last, "conditions": [condition, *others]}


def decide_ready(snapshot: Snapshot | None, cache_node: CacheNode) -> Verdict:
    """Whether pods of this node are served."""
    node = cache_node.name
    if cache_node.spec.drain:
        return _ready(
            Reason.DRAINING, f"node {node} leaves TierClass {cache_node.spec.tier_class}; its store takes no connection"
        )
    if snapshot is None:
        return _ready(Reason.STARTING, f"the store on node {node} has started and not spoken yet")
    if snapshot.ready:
        pools = len(snapshot.pools)
        return _ready(Reason.SERVING, f"{pools} {'pool is' if pools == 1 else 'pools are'} served on node {node}")
    if not snapshot.tiers:
        return _ready(Reason.RECOVERING, f"the store on node {node} reads what it kept: {snapshot.message}")
    if not snapshot.node:
        return _ready(
            Reason.NODE_AGENT_UNAVAILABLE,
            f"pods cannot reach the store on node {node}: {snapshot.message}; check the kvtier-node pod of that node",
        )
    return _ready(Reason.STARTING, f"the store on node {node} is not ready: {snapshot.message}")


def decide_drained(snapshot: Snapshot | None, cache_node: CacheNode) -> Verdict:
    """Whether the drain that this very generation asks for is done."""
    if not cache_node.spec.drain:
        return Verdict(ConditionType.DRAINED, "False", Reason.NOT_DRAINING, "spec.drain is not set")
    if snapshot and snapshot.drained and snapshot.generation == cache_node.generation:
        return Verdict(ConditionType.DRAINED, "True", Reason.FLUSHED, "no pod is connected, and all is written")
    open_connections = sum(pool.connections for pool in snapshot.pools) if snapshot else 0
    message = f"{open_connections} connections are being closed and writes are being flushed"
    return Verdict(ConditionType.DRAINED, "False", Reason.FLUSHING, message)


def _hit_ratio(pools: Sequence[PoolSnapshot]) -> str:
    return hit_ratio(sum(pool.recent_asked for pool in pools), sum(pool.recent_hit for pool in pools))


def _ready(reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionType.READY, "True" if reason is Reason.SERVING else "False", reason, message)


def _figures(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "observedGeneration": snapshot.generation,
        # The API server makes an applied map null whose last entry goes, and refuses that; without the map it is gone.
        **({"tiers": _tiers(snapshot.tiers)} if snapshot.tiers else {}),
        "hitRatio": _hit_ratio(snapshot.pools),
        "pools": [
            {
                "uid": pool.uid,
                "blocks": pool.blocks,
                "tiers": _tiers(pool.tiers),
                "recentAsked": pool.recent_asked,
                "recentHit": pool.recent_hit,
            }
            for pool in snapshot.pools
        ],
        "devices": [device_status(device) for device in snapshot.devices],
    }


def _tiers(tiers: Mapping[str, TierUse]) -> dict[str, Any]:
    return {
        name: {"capacity": exact(tier.capacity_bytes), "used": about(tier.used_bytes)} for name, tier in tiers.items()
    }
