"""The DaemonSet and ConfigMap of every class: made, changed, deleted after the drain. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvtier_crds.names import FINALIZER, MANAGER_OPERATOR

from kvtier_operator.desired.actions import Action, Apply, Delete, SetFinalizers
from kvtier_operator.desired.cache_nodes import may_stop
from kvtier_operator.desired.store import store_objects
from kvtier_operator.names import ANNOTATION_APPLIED_HASH, LABEL_MANAGED_BY, store_name
from kvtier_operator.objects import CONFIG_MAPS, DAEMON_SETS, TIER_CLASSES, Object, Resource, Target
from kvtier_operator.settings import Settings
from kvtier_operator.view.facts import ClassFacts, OwnedFacts, PodFacts, View


@dataclass(frozen=True)
class StoreSteps:
    """What changes among the stores' objects, and among the classes' finalizers."""

    finalizers: list[Action]
    configuration: list[Action]
    daemon_sets: list[Action]
    deletions: list[Action]
    releases: list[Action]
    desired: Mapping[str, Object]
    """The DaemonSet of every class that should have one."""


def decide_stores(view: View, pods: Mapping[str, list[PodFacts]], settings: Settings) -> StoreSteps:
    """The next step of every class's objects. `pods`: the stores' pods by node."""
    wanted: dict[str, Object] = {}
    steps = StoreSteps([], [], [], [], [], desired=wanted)
    for name, tier_class in view.classes.items():
        if tier_class.deleting:
            steps.releases.extend(_release(tier_class, view))
        elif tier_class.spec is not None:
            steps.finalizers.extend(_hold(tier_class))
            config_map, wanted[name] = store_objects(tier_class, settings)
            _apply(steps, name, config_map, wanted[name], view)
    remaining = {name for name, tier_class in view.classes.items() if not tier_class.deleting}
    for owned, resource in _owned(view):
        if owned.tier_class not in remaining and stores_may_stop(owned.tier_class, view, pods):
            target = Target(resource, owned.meta.name, owned.meta.namespace)
            steps.deletions.append(Action(Delete(target, owned.meta.uid)))
    return steps


def stores_may_stop(tier_class: str, view: View, pods: Mapping[str, list[PodFacts]]) -> bool:
    """Whether no store of the class has anything left to flush."""
    return all(
        may_stop(cache_node, pods.get(name, []), view)
        for name, cache_node in view.cache_nodes.items()
        if cache_node.tier_class == tier_class
    )


def differs(desired: Any, live: Any) -> bool:
    """Whether `live` lacks something of `desired`; what the API server filled in does not count."""
    if isinstance(desired, Mapping):
        return not isinstance(live, Mapping) or any(differs(value, live.get(key)) for key, value in desired.items())
    if isinstance(desired, list):
        return not isinstance(live, list) or len(desired) != len(live) or any(map(differs, desired, live))
    return bool(desired != live)


def _hold(tier_class: ClassFacts) -> Iterator[Action]:
    if FINALIZER not in tier_class.meta.finalizers:
        yield _set_finalizers(tier_class, (*tier_class.meta.finalizers, FINALIZER))


def _release(tier_class: ClassFacts, view: View) -> Iterator[Action]:
    """Let the class go once nothing of it is left."""
    name = tier_class.meta.name
    left = any(owned.tier_class == name for owned, _ in _owned(view))
    left = left or any(cache_node.tier_class == name for cache_node in view.cache_nodes.values())
    if FINALIZER in tier_class.meta.finalizers and not left:
        yield _set_finalizers(tier_class, tuple(entry for entry in tier_class.meta.finalizers if entry != FINALIZER))


def _set_finalizers(tier_class: ClassFacts, finalizers: tuple[str, ...]) -> Action:
    meta = tier_class.meta
    return Action(SetFinalizers(Target(TIER_CLASSES, meta.name), finalizers, meta.uid, meta.resource_version))


def _apply(steps: StoreSteps, name: str, config_map: Object, daemon_set: Object, view: View) -> None:
    held = Target(TIER_CLASSES, name)
    configuration = _target(CONFIG_MAPS, config_map)
    if _outdated(config_map, view.config_maps.get(store_name(name))):
        steps.configuration.append(Action(Apply(configuration, config_map), requires=(held,)))
    if _outdated(daemon_set, view.daemon_sets.get(store_name(name))):
        action = Action(Apply(_target(DAEMON_SETS, daemon_set), daemon_set), requires=(held, configuration))
        steps.daemon_sets.append(action)


def _outdated(desired: Object, live: OwnedFacts | None) -> bool:
    if live is None or live.applied_hash != desired["metadata"]["annotations"][ANNOTATION_APPLIED_HASH]:
        return True
    metadata = {key: desired["metadata"][key] for key in ("labels", "annotations")}
    body = {key: value for key, value in desired.items() if key in ("data", "spec")}
    return differs(body | {"metadata": metadata}, live.raw)


def _owned(view: View) -> Iterator[tuple[OwnedFacts, Resource]]:
    """What the operator made itself; a label alone does not make it ours."""
    for resource, objects in ((DAEMON_SETS, view.daemon_sets), (CONFIG_MAPS, view.config_maps)):
        for owned in objects.values():
            labels = owned.meta.labels
            if owned.meta.name == store_name(owned.tier_class) and labels.get(LABEL_MANAGED_BY) == MANAGER_OPERATOR:
                yield owned, resource


def _target(resource: Resource, body: Object) -> Target:
    return Target(resource, body["metadata"]["name"], body["metadata"]["namespace"])
