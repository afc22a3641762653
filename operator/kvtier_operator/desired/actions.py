"""What can be done to the cluster: each step small, safe to repeat, and safe to leave undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from kvtier_crds.names import GROUP, VERSION

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind of object, as its URL is built."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version


TIER_CLASSES: Final = Resource(GROUP, VERSION, "tierclasses", "TierClass")
CACHE_POOLS: Final = Resource(GROUP, VERSION, "cachepools", "CachePool")
CACHE_NODES: Final = Resource(GROUP, VERSION, "cachenodes", "CacheNode")
NODES: Final = Resource("", "v1", "nodes", "Node")
PODS: Final = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
EVENTS: Final = Resource("", "v1", "events", "Event")


@dataclass(frozen=True)
class Target:
    """One object."""

    resource: Resource
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.resource.kind} {where}{self.name}"


@dataclass(frozen=True)
class Apply:
    """Make the object be as `body` says (server-side apply)."""

    target: Target
    body: Object
    subresource: Literal["", "status"] = ""


@dataclass(frozen=True)
class Delete:
    """Delete exactly that object, if it has not changed meanwhile."""

    target: Target
    uid: str
    resource_version: str = ""


@dataclass(frozen=True)
class SetFinalizers:
    """Set the finalizers of exactly that version of the object."""

    target: Target
    finalizers: tuple[str, ...]
    uid: str
    resource_version: str


@dataclass(frozen=True)
class Post:
    """Post an Event. Its name is made from its content: posting it again does nothing."""

    target: Target
    body: Object


Step = Apply | Delete | SetFinalizers | Post


@dataclass(frozen=True)
class Action:
    """A step, and the objects whose own steps must not have failed in the same pass."""

    step: Step
    requires: tuple[Target, ...] = ()


class Stage(Enum):
    """Actions of one stage run side by side; stages run in this order."""

    FINALIZERS = "finalizers"
    EVENTS = "events"
    CONFIGURATION = "configuration"
    OBJECTS = "objects"
    DELETIONS = "deletions"
    STATUSES = "statuses"
    RELEASES = "releases"


Plan = Mapping[Stage, list[Action]]
