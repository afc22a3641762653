"""TierClass.status of a class that is being deleted: what it still waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import TierClassStatus

from kvtier_operator.desired.cache_nodes import may_stop
from kvtier_operator.status.conditions import false, stamp, true
from kvtier_operator.status.words import names
from kvtier_operator.view.facts import CacheNodeFacts, ClassFacts, PodFacts, View

EXPECTED: Final = timedelta(minutes=2)
"""How long emptying a node may take before it is called blocked."""


def deleting_status(
    tier_class: ClassFacts, view: View, pods: Mapping[str, Sequence[PodFacts]], now: datetime
) -> TierClassStatus:
    """The status of a class on its way out; its figures stay as they were."""
    mine = [entry for entry in view.cache_nodes.values() if entry.tier_class == tier_class.meta.name]
    waiting = _waiting(mine, view, pods)
    blocked = _blocked(tier_class, mine, view, now)
    verdicts = [
        false(ConditionType.READY, Reason.DRAINING, f"the class is being deleted: {waiting}"),
        true(ConditionType.PROGRESSING, Reason.DRAINING, waiting),
        true(ConditionType.DEGRADED, Reason.DELETION_BLOCKED, blocked)
        if blocked
        else false(ConditionType.DEGRADED, Reason.AS_EXPECTED, "nothing needs attention"),
    ]
    kept = tier_class.status or TierClassStatus()
    conditions = stamp(verdicts, kept.conditions, tier_class.meta.generation, now)
    return kept.model_copy(update={"conditions": conditions, "observed_generation": tier_class.meta.generation})


def _waiting(mine: Sequence[CacheNodeFacts], view: View, pods: Mapping[str, Sequence[PodFacts]]) -> str:
    flushing = [entry.meta.name for entry in mine if not may_stop(entry, list(pods.get(entry.meta.name, ())), view)]
    if flushing:
        return f"waits until the store has drained on {names(sorted(flushing))}"
    if mine:
        return f"waits until kvtier-node has cleaned up on {names(sorted(entry.meta.name for entry in mine))}"
    return "its last objects are being removed"


def _blocked(tier_class: ClassFacts, mine: Sequence[CacheNodeFacts], view: View, now: datetime) -> str:
    """What a person must do before the deletion can go on, or empty."""
    present = [entry for entry in sorted(mine, key=lambda entry: entry.meta.name) if entry.meta.name in view.nodes]
    refused = next((verdict for verdict in map(_release_refused, present) if verdict), "")
    if refused:
        return refused
    since = tier_class.meta.deleting_since
    if since is None or now - since < EXPECTED:
        return ""
    dead = [entry.meta.name for entry in present if not view.nodes[entry.meta.name].ready]
    if dead:
        return (
            f"nodes that are not Ready in Kubernetes cannot be cleaned: {names(dead)}; bring them back, or delete the "
            "Node objects of machines that are gone for good"
        )
    slow = [entry.meta.name for entry in present if not entry.is_true(ConditionType.RELEASED)]
    if slow:
        return f"nodes not cleaned yet: {names(slow)}; read the logs of the store and of the kvtier-node pod there"
    return ""


def _release_refused(entry: CacheNodeFacts) -> str:
    released = entry.condition(ConditionType.RELEASED)
    if released and released.status == "False" and released.reason == Reason.RELEASE_BLOCKED:
        return f"node {entry.meta.name} cannot be cleaned: {released.message}"
    return ""
