"""Events for changes that a person cares about. Pure.

An Event's name is made from the object's version and the Event's own words: whoever decides the same again,
after a crash or on a view that is a moment old, posts the same name, and the API server keeps the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kvtier_crds.conditions import ConditionType
from kvtier_crds.models import Condition
from kvtier_crds.names import MANAGER_OPERATOR

from kvtier_operator.desired.actions import Action, Post
from kvtier_operator.objects import EVENTS, Resource, Target
from kvtier_operator.status.words import names
from kvtier_operator.view.facts import Meta

DEFAULT_NAMESPACE = "default"
"""Where Events about cluster-scoped objects live."""
MAX_NOTE = 1024


def changes(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[tuple[str, str, str]]:
    """(type, reason, note) for conditions whose change matters: Ready by status, Degraded by status or reason.

    What a rollout makes unready for a moment, and what has never been ready, is told by Degraded alone.
    """
    old = {condition.type: condition for condition in before}
    for condition in after:
        was = old.get(condition.type)
        if condition.type == ConditionType.READY and condition.status == "True" and (not was or was.status != "True"):
            yield "Normal", condition.reason, condition.message
        worse = not was or was.status != "True" or was.reason != condition.reason
        if condition.type == ConditionType.DEGRADED and condition.status == "True" and worse:
            yield "Warning", condition.reason, condition.message
    lost = old.get(ConditionType.READY)
    now = next((condition for condition in after if condition.type == ConditionType.READY), None)
    rolling = any(condition.type == ConditionType.PROGRESSING and condition.status == "True" for condition in after)
    if lost and now and lost.status == "True" and now.status == "False" and not rolling:
        yield "Warning", now.reason, now.message


def node_changes(
    added: Mapping[str, Sequence[str]], draining: Mapping[str, Sequence[str]], name: str
) -> Iterator[tuple[str, str, str]]:
    """(type, reason, note) for nodes that join or leave a class."""
    if added.get(name):
        yield "Normal", "NodeAdded", f"added: {names(sorted(added[name]))}"
    if draining.get(name):
        yield "Normal", "NodeDraining", f"begins to drain: {names(sorted(draining[name]))}"


def event(
    resource: Resource,
    meta: Meta,
    change: tuple[str, str, str],
    instance: str,
    now: datetime,
) -> Action:
    """The action that posts one Event about an object."""
    kind, reason, note = change
    namespace = meta.namespace or DEFAULT_NAMESPACE
    key = "\0".join((meta.uid, meta.resource_version, kind, reason, note))
    name = f"{meta.name[:200]}.{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    body: dict[str, Any] = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": MANAGER_OPERATOR},
        "reportingComponent": MANAGER_OPERATOR,
        "reportingInstance": instance[:128],
        "type": kind,
        "reason": reason,
        "message": note[:MAX_NOTE],
        "involvedObject": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        | ({"namespace": meta.namespace} if meta.namespace else {}),
    }
    return Action(Post(Target(EVENTS, name, namespace), body))
