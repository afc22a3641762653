"""What the operator keeps of each object: the fields that decisions are made from, and no more.

A cluster has thousands of nodes, so a whole Node or Pod is never kept. Values are frozen: a view is
a set of them, and pure functions take it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kvtier_crds.models import (
    CacheNodeSpec,
    CacheNodeStatus,
    CachePoolSpec,
    CachePoolStatus,
    Condition,
    TierClassSpec,
    TierClassStatus,
)


@dataclass(frozen=True)
class Meta:
    """What every object has."""

    name: str
    uid: str
    namespace: str = ""
    generation: int = 0
    resource_version: str = ""
    created: datetime | None = None
    deleting_since: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassFacts:
    """A TierClass. `spec` is None when the stored one does not fit the model; `fault` then says why."""

    meta: Meta
    spec: TierClassSpec | None
    status: TierClassStatus | None
    fault: str = ""

    @property
    def deleting(self) -> bool:
        """Whether it is on its way out."""
        return self.meta.deleting_since is not None


@dataclass(frozen=True)
class PoolFacts:
    """A CachePool. `spec` is None when the stored one does not fit the model; `fault` then says why."""

    meta: Meta
    spec: CachePoolSpec | None
    status: CachePoolStatus | None
    fault: str = ""


@dataclass(frozen=True)
class CacheNodeFacts:
    """A CacheNode; its name is the node's."""

    meta: Meta
    tier_class: str
    drain: bool
    spec: CacheNodeSpec | None
    """None: the stored one does not fit the model."""
    raw_spec: Mapping[str, Any]
    status: CacheNodeStatus

    def condition(self, kind: str) -> Condition | None:
        """Its condition of that type."""
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether that condition is True for the present spec."""
        condition = self.condition(kind)
        if condition is None or condition.status != "True":
            return False
        return condition.observed_generation is None or condition.observed_generation >= self.meta.generation


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True)
class NodeFacts:
    """A Node."""

    meta: Meta
    taints: tuple[Taint, ...]
    ready: bool
    allocatable: Mapping[str, str]
    """Quantities by resource."""


@dataclass(frozen=True)
class PodFacts:
    """A pod of a store."""

    meta: Meta
    tier_class: str
    node: str
    """Where it runs, or where its DaemonSet wants it."""
    running: bool
    """A container of it runs."""
    ready: bool
    unschedulable: str
    """The scheduler's message, or empty."""
    failing: str
    """Why a container does not start or keeps ending, or empty."""
    spec_hash: str
    started: datetime | None
    requests: Mapping[str, int]
    """What it requests, in base units (CPU in thousandths)."""


@dataclass(frozen=True)
class OwnedFacts:
    """A ConfigMap or DaemonSet that the operator made for a TierClass."""

    meta: Meta
    tier_class: str
    applied_hash: str
    """Hash of what was applied last, from its annotation."""
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class RoomFacts:
    """What pods request on a node, in base units by resource (CPU in thousandths), finished pods left out."""

    requested: Mapping[str, int]


@dataclass(frozen=True)
class View:
    """The cluster at one moment. Keys: names, or (namespace, name) for pools and pods."""

    classes: Mapping[str, ClassFacts]
    pools: Mapping[tuple[str, str], PoolFacts]
    cache_nodes: Mapping[str, CacheNodeFacts]
    nodes: Mapping[str, NodeFacts]
    pods: Mapping[tuple[str, str], PodFacts]
    daemon_sets: Mapping[str, OwnedFacts]
    config_maps: Mapping[str, OwnedFacts]
