"""Comparing the view with fresh lists: is it complete, has a watch gone silent, is something gone unseen?

A watch can end without a word, and after a broken one its objects are listed anew without those deleted
meanwhile. So every kind is listed again now and then, metadata only. What the list has and the view lacks must
arrive by the watch before the next audit, or the watch is silent. What the view has and a later list lacks is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtier_operator.apply.api import Api
from kvtier_operator.objects import Resource
from kvtier_operator.view.cache import Cache, version
from kvtier_operator.view.kinds import WATCHED_KINDS, Key, WatchedKind
from kvtier_operator.view.read import read_meta

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """One kind, as the API server listed it."""

    version: int
    objects: Mapping[Key, tuple[str, int]]
    """UID and resource version."""


@dataclass(frozen=True)
class Comparison:
    """A list against the view."""

    missing: Mapping[Key, int]
    """What the view lacks or has an older version of, and the version listed."""
    gone: frozenset[Key]
    """What the view has and no longer exists."""


def compare(listed: Listed, known: Mapping[Key, tuple[str, int]]) -> Comparison:
    """What differs. An object newer than the list is left alone. Pure."""
    missing = {}
    for key, (uid, listed_version) in listed.objects.items():
        known_uid, known_version = known.get(key, ("", -1))
        if known_version < listed_version or (known_uid != uid and known_version <= listed.version):
            missing[key] = listed_version
    absent = known.keys() - listed.objects.keys()
    gone = {key for key in absent if known[key][1] <= listed.version}
    return Comparison(missing, frozenset(gone))


@dataclass
class Auditor:
    """Audits every kind in turn. `complete` and `silent` are what the loop and the health check ask."""

    api: Api
    cache: Cache
    namespace: str
    _overdue: dict[Resource, Mapping[Key, int]] = field(default_factory=dict)
    complete: bool = False
    """Whether the view has once, in one audit, held all that there was of every kind."""
    silent: frozenset[str] = frozenset()
    """Kinds whose watch has not brought what a list had an audit ago."""

    async def list_all(self) -> None:
        """List every kind, to see that it can be. Raises what the API raises."""
        for kind in WATCHED_KINDS:
            await self._list(kind)

    async def audit(self) -> None:
        """List every kind and compare. Raises what the API raises."""
        silent = set()
        for kind in WATCHED_KINDS:
            if await self._audit(kind):
                silent.add(kind.resource.kind)
        self.silent = frozenset(silent)
        self.complete = self.complete or not any(self._overdue.values())

    async def _audit(self, kind: WatchedKind) -> bool:
        listed = await self._list(kind)
        found = compare(listed, self.cache.versions(kind))
        for key in found.gone:
            log.info("%s %s is gone without a word from its watch", kind.resource.kind, key)
            self.cache.discard(kind, key)
        before = self._overdue.get(kind.resource, {})
        known = self.cache.versions(kind)
        late = [key for key, wanted in before.items() if key in found.missing and known.get(key, ("", -1))[1] < wanted]
        self._overdue[kind.resource] = found.missing
        return bool(late)

    async def _list(self, kind: WatchedKind) -> Listed:
        namespace = self.namespace if kind.release_namespace else ""
        objects: dict[Key, tuple[str, int]] = {}
        list_version = 0
        async for page_version, items in self.api.list_metadata(kind.resource, namespace, kind.selector):
            list_version = version(page_version)
            for item in items:
                meta = read_meta(item)
                objects[kind.key(meta)] = (meta.uid, version(meta.resource_version))
        return Listed(list_version, objects)
