"""The view while it changes: kept by the watches, checked by audits, handed out frozen.

Used in one event loop; nothing here waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

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
from kvtier_operator.view.facts import View
from kvtier_operator.view.kinds import WATCHED_KINDS, Key, WatchedKind
from kvtier_operator.view.read import read_meta

log = logging.getLogger(__name__)


class Cache:
    """Facts by kind and key. `changed` is called after every change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._facts: dict[Resource, dict[Key, Any]] = {kind.resource: {} for kind in WATCHED_KINDS}

    def put(self, kind: WatchedKind, raw: Mapping[str, Any]) -> None:
        """Take in an object as it is now. An object that is not one at all is logged and passed over."""
        try:
            facts = kind.read(raw)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.exception("cannot read a %s: it is left out", kind.resource.kind)
            return
        present = self._facts[kind.resource].get(kind.key(facts.meta))
        if present != facts:
            self._facts[kind.resource][kind.key(facts.meta)] = facts
            self._changed()

    def remove(self, kind: WatchedKind, raw: Mapping[str, Any]) -> None:
        """Take out an object that is gone; a later one of the same name stays."""
        meta = read_meta(raw)
        present = self._facts[kind.resource].get(kind.key(meta))
        if present is not None and present.meta.uid == meta.uid:
            self.discard(kind, kind.key(meta))

    def discard(self, kind: WatchedKind, key: Key) -> None:
        """Take out what is under `key`."""
        if self._facts[kind.resource].pop(key, None) is not None:
            self._changed()

    def versions(self, kind: WatchedKind) -> dict[Key, tuple[str, int]]:
        """UID and resource version of every object of the kind."""
        return {key: (facts.meta.uid, version(facts.meta.resource_version)) for key, facts in self.facts(kind).items()}

    def facts(self, kind: WatchedKind) -> Mapping[Key, Any]:
        """All facts of the kind."""
        return MappingProxyType(self._facts[kind.resource])

    def view(self) -> View:
        """The cluster as it is known now; later changes do not reach it."""
        facts: Mapping[Resource, Any] = {resource: dict(entries) for resource, entries in self._facts.items()}
        return View(
            classes=facts[TIER_CLASSES],
            pools=facts[CACHE_POOLS],
            cache_nodes=facts[CACHE_NODES],
            nodes=facts[NODES],
            pods=facts[PODS],
            daemon_sets=facts[DAEMON_SETS],
            config_maps=facts[CONFIG_MAPS],
        )


def version(text: str) -> int:
    """A resource version as a number, by which versions of one kind are ordered; 0 when it is none."""
    return int(text) if text.isdigit() else 0
