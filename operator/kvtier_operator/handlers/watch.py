"""Watches, by kopf: every event goes into the view, and nothing else happens here.

Two kopf operators run in the process, since one has the same namespaces for all it watches: cluster-wide for
what is anywhere, and in the release's namespace for what the operator made, whose role ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf
from kvtier_crds.names import GROUP

from kvtier_operator.view.cache import Cache
from kvtier_operator.view.kinds import WATCHED_KINDS, WatchedKind

SERVER_TIMEOUT_S: Final = 240
"""A watch request is ended by the server after this time and made anew."""
CLIENT_TIMEOUT_S: Final = 270
REQUEST_TIMEOUT_S: Final = 30
LIST_CHUNK: Final = 500


def registry(cache: Cache, *, release_namespace: bool, ailment: Callable[[], str]) -> kopf.OperatorRegistry:
    """The handlers of one of the two operators."""
    handlers = kopf.OperatorRegistry()
    for kind in WATCHED_KINDS:
        if kind.release_namespace == release_namespace:
            _watch(handlers, kind, cache)
    kopf.on.login(registry=handlers)(_log_in)

    async def healthy(**_: Any) -> str:
        problem = ailment()
        if problem:
            raise kopf.PermanentError(problem)
        return "ok"

    kopf.on.probe(registry=handlers, id="kvtier", errors=kopf.ErrorsMode.PERMANENT)(healthy)
    return handlers


def settings() -> kopf.OperatorSettings:
    """kopf's settings: it only watches, and writes nothing of its own to any object."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.scanning.disabled = True
    # kopf takes its own finalizer off whatever it does not hold: it must never be the one that holds a TierClass.
    chosen.persistence.finalizer = f"kopf.{GROUP}/unused"
    chosen.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{GROUP}")
    chosen.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{GROUP}")
    chosen.networking.request_timeout = REQUEST_TIMEOUT_S
    chosen.watching.server_timeout = SERVER_TIMEOUT_S
    chosen.watching.client_timeout = CLIENT_TIMEOUT_S
    chosen.watching.chunk_size = LIST_CHUNK
    chosen.process.ultimate_exiting_timeout = 20
    for kind in WATCHED_KINDS:
        if kind.selector:
            chosen.watching.label_selectors[_selector(kind)] = kind.selector
    return chosen


def _selector(kind: WatchedKind) -> tuple[str, str, str]:
    resource = kind.resource
    return (resource.group, resource.version, resource.plural)


def _watch(handlers: kopf.OperatorRegistry, kind: WatchedKind, cache: Cache) -> None:
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        if event["type"] == "DELETED":
            cache.remove(kind, event["object"])
        else:
            cache.put(kind, event["object"])

    kopf.on.event(*_selector(kind), registry=handlers, id=kind.resource.plural)(take)


async def _log_in(**given: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_via_client(**given)
