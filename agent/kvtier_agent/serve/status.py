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

MESSAGE_LIMIT = 1024
"""Characters of a device's error; the resource takes no more."""


def build_status(snapshot: Snapshot | None, cache_node: CacheNode, now: datetime) -> dict[str, Any]:
    """All fields of the status that the store owns. None: the store has not said anything yet."""
    verdicts = [decide_ready(snapshot, cache_node), decide_degraded(snapshot), decide_drained(snapshot, cache_node)]
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


def decide_degraded(snapshot: Snapshot | None) -> Verdict:
    """Whether a device is out of use, or slower than it should be."""
    if snapshot and snapshot.device_errors:
        faults = "; ".join(f"{name}: {error}" for name, error in sorted(snapshot.device_errors.items()))
        message = f"not in use: {faults}; check the disk, then delete the store's pod"
        return Verdict(ConditionType.DEGRADED, "True", Reason.DEVICE_FAILED, message[:4096])
    indirect = sorted(name for name, direct in snapshot.direct_io.items() if not direct) if snapshot else []
    if indirect:
        message = f"no direct I/O on {', '.join(indirect)}: reads pass through the page cache; use ext4 or xfs"
        return Verdict(ConditionType.DEGRADED, "True", Reason.NO_DIRECT_IO, message)
    return Verdict(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, "all devices are in use")


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
        "tiers": _tiers(snapshot.tiers),
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
        "devices": [_device(snapshot, name) for name in sorted({*snapshot.direct_io, *snapshot.device_errors})],
    }


def _tiers(tiers: Mapping[str, TierUse]) -> dict[str, Any]:
    return {
        name: {"capacity": exact(tier.capacity_bytes), "used": about(tier.used_bytes)} for name, tier in tiers.items()
    }


def _device(snapshot: Snapshot, name: str) -> dict[str, Any]:
    device: dict[str, Any] = {"name": name, "directIo": snapshot.direct_io.get(name, False)}
    error = snapshot.device_errors.get(name)
    return device | ({"error": error[:MESSAGE_LIMIT]} if error else {})
