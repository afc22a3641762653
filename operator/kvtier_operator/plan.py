"""View -> plan: every decision of one pass, put together. Pure.

The order of stages is what makes an end at any instant harmless: a class is held before anything is made for
it, a store is taken away only when it has drained, a class is let go when nothing of it is left. All that a
pass leaves undone, the next one decides again from what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from kvtier_crds.models import Condition
from pydantic import BaseModel

from kvtier_operator.desired.actions import Action, Apply, Plan, Stage
from kvtier_operator.desired.cache_nodes import NodeSteps, decide_cache_nodes
from kvtier_operator.desired.grants import class_grants, pools_by_class
from kvtier_operator.desired.ownership import Ownership, decide_owners
from kvtier_operator.desired.store import spec_hash
from kvtier_operator.desired.stores import StoreSteps, decide_stores
from kvtier_operator.names import class_of_store
from kvtier_operator.objects import CACHE_NODES, CACHE_POOLS, CONFIG_MAPS, DAEMON_SETS, TIER_CLASSES, Resource, Target
from kvtier_operator.settings import Settings
from kvtier_operator.status.cache_pool import Granted, ReadyNodes, invalid_pool_status, pool_status
from kvtier_operator.status.deletion import deleting_status
from kvtier_operator.status.events import changes, event, node_changes
from kvtier_operator.status.findings import serves
from kvtier_operator.status.tier_class import ClassInput, class_status, invalid_class_status
from kvtier_operator.view.facts import Meta, PodFacts, RoomFacts, View

ROOMS_PER_PASS = 10
"""Nodes whose pods are listed in one pass to explain why a store found no room."""


def pods_by_node(view: View) -> Mapping[str, list[PodFacts]]:
    """The stores' pods by the node they run on or are meant for."""
    grouped: dict[str, list[PodFacts]] = defaultdict(list)
    for pod in view.pods.values():
        if pod.node:
            grouped[pod.node].append(pod)
    return grouped


def nodes_without_room(view: View) -> list[str]:
    """Nodes on which the scheduler found no place for a store; their pods explain it."""
    return sorted({pod.node for pod in view.pods.values() if pod.unschedulable and pod.node in view.nodes})[
        :ROOMS_PER_PASS
    ]


def decide(
    view: View,
    rooms: Mapping[str, RoomFacts],
    failures: Mapping[Target, str],
    settings: Settings,
    now: datetime,
) -> Plan:
    """All actions that this view calls for. `failures`: what the last attempts on each object ended with."""
    pods = pods_by_node(view)
    ownership = decide_owners(view)
    stores = decide_stores(view, pods, settings)
    nodes = decide_cache_nodes(view, ownership, pods, now)
    statuses = list(_statuses(view, ownership, pods, stores, rooms, failures, now))
    return {
        Stage.FINALIZERS: stores.finalizers,
        Stage.EVENTS: list(_events(view, nodes, statuses, settings, now)),
        Stage.CONFIGURATION: stores.configuration,
        Stage.OBJECTS: [*stores.daemon_sets, *nodes.applies],
        Stage.DELETIONS: [*stores.deletions, *nodes.deletions],
        Stage.STATUSES: [_status_action(resource, meta, status) for resource, meta, _, status in statuses],
        Stage.RELEASES: stores.releases,
    }


_StatusChange = tuple[Resource, Meta, Sequence[Condition], BaseModel]
"""Kind, object, conditions so far, new status."""


def _statuses(
    view: View,
    ownership: Ownership,
    pods: Mapping[str, list[PodFacts]],
    stores: StoreSteps,
    rooms: Mapping[str, RoomFacts],
    failures: Mapping[Target, str],
    now: datetime,
) -> Iterator[_StatusChange]:
    """Statuses that differ from what is stored."""
    refused = _failures_by_class(failures, ownership)
    for name, tier_class in view.classes.items():
        if tier_class.deleting:
            status = deleting_status(tier_class, view, pods, now)
        elif tier_class.spec is None:
            status = invalid_class_status(tier_class, now)
        else:
            given = ClassInput(pods, spec_hash(stores.desired[name]), rooms, refused.get(name, ()))
            status = class_status(tier_class, view, ownership, given, now)
        if status != tier_class.status:
            yield TIER_CLASSES, tier_class.meta, _conditions(tier_class.status), status
    yield from _pool_statuses(view, pods, now)


def _pool_statuses(view: View, pods: Mapping[str, list[PodFacts]], now: datetime) -> Iterator[_StatusChange]:
    ready = _ready_nodes(view, pods)
    granted = _granted(view)
    for pool in view.pools.values():
        if pool.spec is None:
            status = invalid_pool_status(pool, now)
        else:
            nodes = ready.get(pool.spec.tier_class, ReadyNodes())
            status = pool_status(pool, view, nodes, granted.get(pool.meta.uid, Granted(pool=False)), now)
        if status != pool.status:
            yield CACHE_POOLS, pool.meta, _conditions(pool.status), status


def _granted(view: View) -> Mapping[str, Granted]:
    """By UID, how far each pool fits in. One whose class cannot be read is told that, not this."""
    granted: dict[str, Granted] = {}
    for name, pools in pools_by_class(view).items():
        tier_class = view.classes.get(name)
        left_out = class_grants(pools, tier_class.spec.tiers).left_out if tier_class and tier_class.spec else {}
        granted |= {pool.meta.uid: Granted(accounts_left_out=left_out.get(pool.meta.uid, 0)) for pool in pools}
    return granted


def _ready_nodes(view: View, pods: Mapping[str, list[PodFacts]]) -> Mapping[str, ReadyNodes]:
    """By class, the nodes whose store serves."""
    ready: dict[str, ReadyNodes] = defaultdict(ReadyNodes)
    for name, cache_node in view.cache_nodes.items():
        node = view.nodes.get(name)
        mine = [pod for pod in pods.get(name, ()) if pod.tier_class == cache_node.tier_class]
        if node and serves(node, cache_node, mine):
            ready[cache_node.tier_class].add(cache_node)
    return ready


def _conditions(status: object) -> Sequence[Condition]:
    return getattr(status, "conditions", None) or []


def _failures_by_class(failures: Mapping[Target, str], ownership: Ownership) -> Mapping[str, list[str]]:
    """Refused objects in words, by the class they are for."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for target, message in sorted(failures.items(), key=lambda item: str(item[0])):
        if target.resource in (CONFIG_MAPS, DAEMON_SETS):
            grouped[class_of_store(target.name)].append(f"{target} is refused by the API server: {message}")
        elif target.resource is CACHE_NODES and target.name in ownership.owner:
            grouped[ownership.owner[target.name]].append(f"{target} is refused by the API server: {message}")
    return grouped


def _status_action(resource: Resource, meta: Meta, status: BaseModel) -> Action:
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": meta.name} | ({"namespace": meta.namespace} if meta.namespace else {}),
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    return Action(Apply(Target(resource, meta.name, meta.namespace), body, subresource="status"))


def _events(
    view: View, nodes: NodeSteps, statuses: Sequence[_StatusChange], settings: Settings, now: datetime
) -> Iterator[Action]:
    for name, tier_class in view.classes.items():
        for change in node_changes(nodes.added, nodes.draining, name):
            yield event(TIER_CLASSES, tier_class.meta, change, settings.instance, now)
    for resource, meta, before, status in statuses:
        for change in changes(before, _conditions(status)):
            yield event(resource, meta, change, settings.instance, now)
