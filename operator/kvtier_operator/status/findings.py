"""What is wrong on a node of a class, each in one sentence that names the node and what to do. Pure.

The checks stand in the order in which they hide one another: where no pod can be made, nobody need hear that
none is ready. `judge_node` is the one entrance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import Condition, Toleration
from kvtier_crds.words import about

from kvtier_operator.quantities import base_units
from kvtier_operator.status.words import names
from kvtier_operator.view.facts import CacheNodeFacts, ClassFacts, NodeFacts, PodFacts, RoomFacts, Taint, View

PATIENCE: Final = timedelta(seconds=60)
"""How long a new node's agent may take to report before its silence is a finding."""

DAEMON_SET_TOLERATES: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""Taints that the DaemonSet controller lets all its pods tolerate."""


@dataclass(frozen=True)
class Finding:
    """Something on a node that needs a person."""

    reason: Reason
    node: str
    message: str


@dataclass(frozen=True)
class Judgement:
    """A node of a class."""

    node: str
    ready: bool
    updated: bool
    findings: tuple[Finding, ...]
    waiting: str
    """Why it is not ready although nothing is wrong, or empty."""

    @property
    def cause(self) -> str:
        """Why it is not ready."""
        return self.findings[0].message if self.findings else self.waiting


def judge_node(
    node: NodeFacts,
    tier_class: ClassFacts,
    view: View,
    pods: Sequence[PodFacts],
    spec_hash: str,
    room: RoomFacts | None,
    now: datetime,
) -> Judgement:
    """How the node does. `pods`: the class's on that node; `room`: known where a pod found none."""
    name = node.meta.name
    pod = _present(pods)
    cache_node = view.cache_nodes.get(name)
    mine = cache_node if cache_node and cache_node.tier_class == tier_class.meta.name else None
    ready = serves(node, mine, pods)
    findings = tuple(_findings(node, tier_class, mine, pod, room, ready, now))
    return Judgement(
        node=name,
        ready=ready,
        updated=pod is not None and pod.spec_hash == spec_hash,
        findings=findings,
        waiting="" if ready else _waiting(name, cache_node, tier_class, pod),
    )


def serves(node: NodeFacts, cache_node: CacheNodeFacts | None, pods: Sequence[PodFacts]) -> bool:
    """Whether the class's store serves there: it says so, its pod is ready, and the node is up. `pods`: the class's."""
    if cache_node is None or cache_node.drain or not node.ready:
        return False
    says = cache_node.condition(ConditionType.READY)
    return says is not None and says.status == "True" and any(pod.ready for pod in pods)


def untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> list[Taint]:
    """The taints that keep a DaemonSet from making a pod."""
    return [
        taint
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and taint.key not in DAEMON_SET_TOLERATES
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _present(pods: Sequence[PodFacts]) -> PodFacts | None:
    """The pod that counts: one that is not ending, else any."""
    return min(pods, key=lambda pod: (pod.meta.deleting_since is not None, pod.meta.name), default=None)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key is None or toleration.key == taint.key
    return toleration.key == taint.key and (toleration.value or "") == taint.value


def _findings(
    node: NodeFacts,
    tier_class: ClassFacts,
    cache_node: CacheNodeFacts | None,
    pod: PodFacts | None,
    room: RoomFacts | None,
    ready: bool,
    now: datetime,
) -> Iterator[Finding]:
    name = node.meta.name
    if not node.ready:
        yield Finding(
            Reason.NODE_NOT_READY,
            name,
            f"node {name} is not Ready in Kubernetes; see `kubectl describe node {name}`, and delete the Node object "
            "if the machine is gone for good",
        )
        return
    if not ready:
        yield from _placement(node, tier_class, pod, room)
    yield from _preflight(name, cache_node, now)
    if pod and pod.failing:
        yield Finding(Reason.STORE_FAILING, name, _failing(name, pod))
    yield from _store(name, cache_node, now)


def _placement(
    node: NodeFacts, tier_class: ClassFacts, pod: PodFacts | None, room: RoomFacts | None
) -> Iterator[Finding]:
    assert tier_class.spec is not None
    name = node.meta.name
    taints = untolerated(node.taints, tier_class.spec.tolerations)
    if taints and (pod is None or not pod.running):
        listed = names([str(taint) for taint in taints])
        yield Finding(
            Reason.NODE_TAINTED,
            name,
            f"node {name} has the taint {listed}, which spec.tolerations does not tolerate; add the toleration, take "
            "the taint off, or leave the node out of spec.nodeSelector",
        )
    elif pod and pod.unschedulable:
        yield _no_place(node, pod, room)


def _no_place(node: NodeFacts, pod: PodFacts, room: RoomFacts | None) -> Finding:
    name = node.meta.name
    short = shortfall(node.allocatable, room.requested, pod.requests) if room else ""
    if short or "Insufficient" in pod.unschedulable:
        remedy = "lower spec.tiers.dram.capacityPerNode, or move other pods away"
        detail = short or f"the scheduler says: {pod.unschedulable}"
        return Finding(Reason.NO_ROOM, name, f"node {name} has no room for the store: {detail}; {remedy}")
    return Finding(
        Reason.STORE_FAILING, name, f"pod {pod.meta.name} cannot be placed on node {name}: {pod.unschedulable}"
    )


def shortfall(allocatable: Mapping[str, str], used: Mapping[str, int], wanted: Mapping[str, int]) -> str:
    """What the store requests, what is free, what is missing; the worst resource, or empty when all fits."""
    shares: list[tuple[float, str]] = []
    for resource, request in wanted.items():
        total = base_units(resource, allocatable.get(resource, "0"))
        free = max(0, total - used.get(resource, 0))
        if request > free:
            figures = [_amount(resource, amount) for amount in (request, free, total, request - free)]
            shares.append(
                (
                    (request - free) / request,
                    f"it requests {figures[0]} of {resource}, {figures[1]} of the node's {figures[2]} are free, "
                    f"{figures[3]} are missing",
                )
            )
    return max(shares)[1] if shares else ""


def _amount(resource: str, amount: int) -> str:
    if resource == "cpu":
        return f"{amount}m"
    return about(amount)


def _preflight(name: str, cache_node: CacheNodeFacts | None, now: datetime) -> Iterator[Finding]:
    if cache_node is None:
        return
    preflight = cache_node.condition(ConditionType.PREFLIGHT)
    if preflight and preflight.status == "False":
        yield _from_condition(name, preflight, Reason.ARENA_UNAVAILABLE)
    elif preflight is None and _older(cache_node.meta.created, now):
        yield Finding(
            Reason.NODE_AGENT_UNAVAILABLE,
            name,
            f"kvtier-node has not reported from node {name}; see that its DaemonSet has a running pod there (its "
            "nodeSelector and tolerations) and read that pod's logs",
        )


def _store(name: str, cache_node: CacheNodeFacts | None, now: datetime) -> Iterator[Finding]:
    if cache_node is None:
        return
    ready = cache_node.condition(ConditionType.READY)
    if ready and ready.reason == Reason.NODE_AGENT_UNAVAILABLE and _older(ready.last_transition_time, now):
        yield _from_condition(name, ready, Reason.NODE_AGENT_UNAVAILABLE)
    degraded = cache_node.condition(ConditionType.DEGRADED)
    if degraded and degraded.status == "True":
        yield _from_condition(name, degraded, Reason.DEVICE_FAILED)


def _from_condition(name: str, condition: Condition, default: Reason) -> Finding:
    reason = Reason(condition.reason) if condition.reason in set(Reason) else default
    message = condition.message.strip() or condition.reason
    return Finding(reason, name, message if name in message else f"node {name}: {message}")


def _failing(name: str, pod: PodFacts) -> str:
    where = f"pod {pod.meta.namespace}/{pod.meta.name} on node {name}"
    return f"{where} fails: {pod.failing}; see `kubectl -n {pod.meta.namespace} logs {pod.meta.name} --previous`"


def _older(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and now - moment > PATIENCE


def _waiting(name: str, cache_node: CacheNodeFacts | None, tier_class: ClassFacts, pod: PodFacts | None) -> str:
    if cache_node is None:
        return f"node {name} is being added"
    if cache_node.tier_class != tier_class.meta.name:
        return f"node {name} is still being drained for TierClass {cache_node.tier_class}"
    if pod is None:
        return f"node {name} has no store pod yet"
    condition = cache_node.condition(ConditionType.READY)
    if pod.ready and condition and condition.status != "True" and condition.message:
        return f"node {name}: {condition.message}"
    return f"the store's pod on node {name} is not ready yet"
