"""Conditions that keep the time of their last change. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import Condition
from kvtier_crds.words import Verdict


def true(kind: ConditionType, reason: Reason, message: str) -> Verdict:
    """The aspect holds."""
    return Verdict(kind, "True", reason, message)


def false(kind: ConditionType, reason: Reason, message: str) -> Verdict:
    """The aspect does not hold."""
    return Verdict(kind, "False", reason, message)


def stamp(
    verdicts: Sequence[Verdict], previous: Sequence[Condition], generation: int, now: datetime
) -> list[Condition]:
    """The verdicts as conditions. The transition time moves only where the status does."""
    before = {condition.type: condition for condition in previous}
    return [_stamp(verdict, before.get(verdict.type), generation, now) for verdict in verdicts]


def _stamp(verdict: Verdict, before: Condition | None, generation: int, now: datetime) -> Condition:
    unchanged = before is not None and before.status == verdict.status
    return Condition(
        type=verdict.type.value,
        status=verdict.status,
        reason=verdict.reason.value,
        message=verdict.message,
        last_transition_time=before.last_transition_time if before and unchanged else now.replace(microsecond=0),
        observed_generation=generation,
    )
