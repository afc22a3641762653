"""The kinds of objects that make up the view: where each is listed, with which selector, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier_crds.names import LABEL_TIER_CLASS

from kvtier_operator.objects import (
    CACHE_NODES,
    CACHE_POOLS,
    CONFIG_MAPS,
    DAEMON_SETS,
    NODES,
    PODS,
    TIER_CLASSES,
    Resource,
)
from kvtier_operator.view.facts import Meta
from kvtier_operator.view.read import (
    read_cache_node,
    read_class,
    read_node,
    read_owned,
    read_pod,
    read_pool,
)

Key = str | tuple[str, str]


@dataclass(frozen=True)
class WatchedKind:
    """A kind in the view. `read` gives facts, which all have `meta`."""

    resource: Resource
    read: Callable[[Mapping[str, Any]], Any]
    key: Callable[[Meta], Key]
    release_namespace: bool = False
    """Watched in the release's namespace alone; else in the whole cluster."""
    selector: str = ""
    """Label selector; empty: every object."""


def _by_name(meta: Meta) -> Key:
    return meta.name


def _by_namespace_and_name(meta: Meta) -> Key:
    return meta.namespace, meta.name


WATCHED_KINDS: Final = (
    WatchedKind(TIER_CLASSES, read_class, _by_name),
    WatchedKind(CACHE_POOLS, read_pool, _by_namespace_and_name),
    WatchedKind(CACHE_NODES, read_cache_node, _by_name),
    WatchedKind(NODES, read_node, _by_name),
    WatchedKind(PODS, read_pod, _by_namespace_and_name, True, LABEL_TIER_CLASS),
    WatchedKind(DAEMON_SETS, read_owned, _by_name, True, LABEL_TIER_CLASS),
    WatchedKind(CONFIG_MAPS, read_owned, _by_name, True, LABEL_TIER_CLASS),
)
