"""Carrying out a plan: stage after stage, side by side within one, each failure on its own and with back-off.

What is remembered here only paces: which objects failed, why, and when to try again. Losing it costs nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvtier_operator.apply.api import Api
from kvtier_operator.desired.actions import Action, Apply, Delete, Plan, Post, SetFinalizers, Stage, Step
from kvtier_operator.objects import CACHE_NODES, Target
from kvtier_operator.view.read import read_cache_node

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 60.0
GONE: Final = 404
CONFLICT: Final = 409
REFUSALS: Final = frozenset({400, 403, 422})
"""Answers that say the object itself is wrong, or not allowed; a person must act."""


@dataclass(frozen=True)
class Failure:
    """The last attempts on an object failed."""

    message: str
    refused: bool
    attempts: int
    retry_at: float
    """On the monotonic clock."""


class Executor:
    """Carries out plans against one API server. One plan at a time."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._failures: dict[tuple[Target, str], Failure] = {}

    def refusals(self) -> Mapping[Target, str]:
        """What the API server refuses, by object, in its own words."""
        return {target: failure.message for (target, _), failure in self._failures.items() if failure.refused}

    def next_retry_s(self) -> float | None:
        """Seconds until something that failed is due again; None when nothing failed."""
        if not self._failures:
            return None
        return max(0.0, min(failure.retry_at for failure in self._failures.values()) - self._clock())

    async def carry_out(self, plan: Plan) -> int:
        """Do what the plan says; what fails is retried by later plans. Returns the number of steps done."""
        self._forget({_key(action.step) for actions in plan.values() for action in actions})
        failed: set[Target] = set()
        done = 0
        for stage in Stage:
            actions = plan.get(stage, [])
            results = await asyncio.gather(*(self._attempt(action, failed) for action in actions))
            failed.update(action.step.target for action, well in zip(actions, results, strict=True) if not well)
            done += sum(results)
        return done

    def _forget(self, planned: Iterable[tuple[Target, str]]) -> None:
        """Failures of steps that are no longer called for."""
        for key in self._failures.keys() - set(planned):
            del self._failures[key]

    async def _attempt(self, action: Action, failed: set[Target]) -> bool:
        """Whether the step is done."""
        key = _key(action.step)
        before = self._failures.get(key)
        if not failed.isdisjoint(action.requires) or (before and before.retry_at > self._clock()):
            return False
        try:
            await _carry_out(self._api, action.step)
        except (ApiException, HTTPError, OSError, ValueError) as error:
            self._note(key, before, error)
            return False
        self._failures.pop(key, None)
        return True

    def _note(self, key: tuple[Target, str], before: Failure | None, error: Exception) -> None:
        message = explain(error)
        attempts = before.attempts + 1 if before else 1
        pause = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempts - 1))
        refused = isinstance(error, ApiException) and error.status in REFUSALS
        self._failures[key] = Failure(message, refused, attempts, self._clock() + pause)
        if before is None or before.message != message:
            target, verb = key
            # A conflict only says that the view is a moment old.
            level = logging.INFO if isinstance(error, ApiException) and error.status == CONFLICT else logging.WARNING
            log.log(level, "cannot %s %s: %s; trying again in %.0f s", verb, target, message, pause)


async def _carry_out(api: Api, step: Step) -> None:
    try:
        match step:
            case Apply():
                await _apply(api, step)
            case Delete():
                await api.delete(step.target, step.uid)
            case SetFinalizers():
                meta = {"uid": step.uid, "resourceVersion": step.resource_version, "finalizers": list(step.finalizers)}
                await api.merge(step.target, {"metadata": meta})
            case Post():
                await api.create(step.target, step.body)
    except ApiException as error:
        if not _is_settled(step, error.status):
            raise


def _is_settled(step: Step, status: int) -> bool:
    """Whether the answer means that there is nothing left to do."""
    if isinstance(step, Post):
        return status == CONFLICT
    return status == GONE and (not isinstance(step, Apply) or step.subresource == "status")


async def _apply(api: Api, step: Apply) -> None:
    reply = await api.apply(step.target, step.body, step.subresource)
    if step.target.resource is CACHE_NODES and not step.subresource:
        wanted = read_cache_node({"metadata": reply["metadata"], "spec": step.body["spec"]})
        if read_cache_node(reply).spec != wanted.spec:
            log.warning("%s has entries in its spec that another wrote; they are taken out", step.target)
            await api.merge(step.target, {"spec": step.body["spec"]})


def explain(error: Exception) -> str:
    """The error in one line, in the API server's own words where it gave some."""
    if isinstance(error, ApiException):
        try:
            said = json.loads(error.body or "")["message"]
        except (TypeError, ValueError, KeyError):
            said = error.reason
        return f"{error.status}: {said}"
    return str(error) or type(error).__name__


def _key(step: Step) -> tuple[Target, str]:
    subresource = step.subresource if isinstance(step, Apply) else ""
    return step.target, f"{type(step).__name__.lower()} {subresource}".strip()
