"""The CacheNode of every node: made, changed, drained, deleted. Pure.

A node's way out: `drain` is set; the store closes and flushes (Drained); the store leaves, with its DaemonSet
or because the node is no longer selected; kvtier-node removes what is on the node (Released); the CacheNode is
deleted. Where the Node object is gone, so is all that was on it, and the CacheNode is deleted at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from kvtier_crds.conditions import ConditionType
from kvtier_crds.models import CacheNodeSpec, NodePool
from kvtier_crds.names import LABEL_TIER_CLASS, MANAGER_OPERATOR

from kvtier_operator.desired.actions import Action, Apply, Delete
from kvtier_operator.desired.grants import class_grants, fit_accounts, pools_by_class, unreadable_grants
from kvtier_operator.desired.ownership import Ownership, node_selector, selects
from kvtier_operator.names import LABEL_MANAGED_BY
from kvtier_operator.objects import CACHE_NODES, PODS, TIER_CLASSES, Target
from kvtier_operator.view.facts import CacheNodeFacts, ClassFacts, PodFacts, View

RESTART_AGE: Final = timedelta(seconds=30)
"""A drained store's pod that its DaemonSet keeps on a node is ended once it is this old."""


@dataclass(frozen=True)
class NodeSteps:
    """What changes among CacheNodes and, where a store must leave a node, its pods."""

    applies: list[Action]
    deletions: list[Action]
    added: defaultdict[str, list[str]]
    """By class, nodes that get a CacheNode now."""
    draining: defaultdict[str, list[str]]
    """By class, nodes that begin to drain now."""


def decide_cache_nodes(
    view: View, ownership: Ownership, pods: Mapping[str, list[PodFacts]], now: datetime
) -> NodeSteps:
    """The next step of every CacheNode. `pods`: the stores' pods by node."""
    steps = NodeSteps([], [], defaultdict(list), defaultdict(list))
    wanted = dict(_wanted(view, ownership))
    for name, cache_node in view.cache_nodes.items():
        held_by = view.classes.get(cache_node.tier_class)
        if name not in view.nodes:
            steps.deletions.append(_deletion(cache_node))
        elif name in wanted and wanted[name].tier_class == cache_node.tier_class:
            if cache_node.spec != wanted[name]:
                steps.applies.append(_application(name, wanted[name]))
        elif held_by is None or held_by.spec is not None or held_by.deleting:
            _leave(steps, cache_node, held_by, pods.get(name, []), view, now)
    for name, spec in wanted.items():
        if name not in view.cache_nodes:
            steps.applies.append(_application(name, spec))
            steps.added[spec.tier_class].append(name)
    return steps


def may_stop(cache_node: CacheNodeFacts, pods: list[PodFacts], view: View) -> bool:
    """Whether the store of a draining node may be taken away: flushed, not running, or lost with its node."""
    if cache_node.meta.name not in view.nodes:
        return True
    running = any(pod.running and pod.tier_class == cache_node.tier_class for pod in pods)
    return cache_node.drain and (cache_node.is_true(ConditionType.DRAINED) or not running)


def _wanted(view: View, ownership: Ownership) -> Iterator[tuple[str, CacheNodeSpec]]:
    grants: dict[str, tuple[NodePool, ...]] = {}
    pools = pools_by_class(view)
    for name, owner in ownership.owner.items():
        tier_class = view.classes.get(owner)
        if tier_class is None or tier_class.spec is None:
            continue
        if owner not in grants:
            grants[owner] = class_grants(pools.get(owner, []), tier_class.spec.tiers).entries
        present = view.cache_nodes.get(name)
        kept = unreadable_grants(view, present.spec if present else None)
        entries = fit_accounts([*grants[owner], *kept]).entries if kept else grants[owner]
        yield name, CacheNodeSpec(tier_class=owner, tiers=tier_class.spec.tiers, pools=list(entries))


def _leave(
    steps: NodeSteps,
    cache_node: CacheNodeFacts,
    tier_class: ClassFacts | None,
    pods: list[PodFacts],
    view: View,
    now: datetime,
) -> None:
    """The next step of a node that its class no longer has."""
    if not cache_node.drain:
        steps.applies.append(_drain(cache_node))
        steps.draining[cache_node.tier_class].append(cache_node.meta.name)
    elif cache_node.is_true(ConditionType.RELEASED):
        steps.deletions.append(_deletion(cache_node))
    elif cache_node.is_true(ConditionType.DRAINED) and _kept_by_daemon_set(cache_node, tier_class, view):
        steps.deletions.extend(
            Action(Delete(Target(PODS, pod.meta.name, pod.meta.namespace), pod.meta.uid))
            for pod in pods
            if pod.tier_class == cache_node.tier_class and pod.started and now - pod.started > RESTART_AGE
        )


def _kept_by_daemon_set(cache_node: CacheNodeFacts, tier_class: ClassFacts | None, view: View) -> bool:
    """Whether the class still selects the node that another class has won, so that its pod does not leave by itself."""
    if tier_class is None or tier_class.spec is None or tier_class.deleting:
        return False
    return selects(node_selector(tier_class), view.nodes[cache_node.meta.name])


def _application(name: str, spec: CacheNodeSpec) -> Action:
    raw = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Action(
        Apply(Target(CACHE_NODES, name), _body(name, spec.tier_class, raw)),
        requires=(Target(TIER_CLASSES, spec.tier_class),),
    )


def _drain(cache_node: CacheNodeFacts) -> Action:
    name = cache_node.meta.name
    return Action(
        Apply(Target(CACHE_NODES, name), _body(name, cache_node.tier_class, {**cache_node.raw_spec, "drain": True}))
    )


def _body(name: str, tier_class: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": CACHE_NODES.api_version,
        "kind": CACHE_NODES.kind,
        "metadata": {
            "name": name,
            "labels": {LABEL_TIER_CLASS: tier_class, LABEL_MANAGED_BY: MANAGER_OPERATOR},
        },
        "spec": dict(spec),
    }


def _deletion(cache_node: CacheNodeFacts) -> Action:
    meta = cache_node.meta
    return Action(Delete(Target(CACHE_NODES, meta.name), meta.uid))
