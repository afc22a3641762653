"""Conditions as both agents write them: the transition time moves only with the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kvtier_crds.conditions import Status
from kvtier_crds.words import Verdict


def to_conditions(
    verdicts: Iterable[Verdict], previous: Mapping[str, Mapping[str, Any]], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The verdicts in the shape of metav1.Condition. Pure.

    `previous` has the present conditions by type: where the status stays, so does its transition time.
    """
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": verdict.type.value,
            "status": verdict.status,
            "reason": verdict.reason.value,
            "message": verdict.message,
            "lastTransitionTime": _transition(previous.get(verdict.type.value, {}), verdict.status, stamp),
            "observedGeneration": generation,
        }
        for verdict in verdicts
    ]


def _transition(previous: Mapping[str, Any], status: Status, stamp: str) -> str:
    kept: str = previous.get("lastTransitionTime", stamp)
    return kept if previous.get("status") == status else stamp
