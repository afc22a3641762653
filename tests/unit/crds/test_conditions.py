"""The list of conditions is complete and unambiguous."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from kvtier_crds.conditions import CONDITIONS, ConditionText, Reason
from kvtier_crds.kinds import KINDS
from kvtier_crds.models import Condition

EACH = pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: f"{c.kind}-{c.type}")


def test_every_reason_is_explained_somewhere() -> None:
    explained = {text.reason for condition in CONDITIONS for text in condition.reasons}
    assert explained == set(Reason)


def test_every_kind_can_be_ready() -> None:
    ready = {condition.kind for condition in CONDITIONS if condition.type == "Ready"}
    assert ready == {kind.name for kind in KINDS}


def test_each_condition_is_listed_once() -> None:
    assert max(Counter((c.kind, c.type) for c in CONDITIONS).values()) == 1


@EACH
def test_reasons_of_a_condition_are_unique_and_fit_its_schema(condition: ConditionText) -> None:
    pattern = next(m.pattern for m in Condition.model_fields["reason"].metadata if hasattr(m, "pattern"))
    reasons = [text.reason for text in condition.reasons]
    assert len(set(reasons)) == len(reasons)
    assert all(re.match(pattern, reason) for reason in reasons)


@EACH
def test_condition_can_be_true_and_false(condition: ConditionText) -> None:
    assert {text.status for text in condition.reasons} == {"True", "False"}


@EACH
def test_reason_that_is_a_fault_has_a_remedy(condition: ConditionText) -> None:
    good = "False" if condition.type in ("Degraded", "Progressing") else "True"
    for text in condition.reasons:
        if text.status == good:
            assert text.remedy == "Nothing to do."
