"""Kinds of objects and single ones, as their URLs are built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

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
