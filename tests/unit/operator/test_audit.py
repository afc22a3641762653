"""The view against a fresh list. That a silent watch fails the health check is shown against an API server."""

from __future__ import annotations

import pytest
from kvtier_operator.view.audit import Comparison, Listed, compare

LISTED = Listed(version=100, objects={"a": ("uid-a", 50), "b": ("uid-b", 60)})
SAME = {"a": ("uid-a", 50), "b": ("uid-b", 60)}


@pytest.mark.parametrize(
    ("known", "missing", "gone"),
    [
        pytest.param(SAME, {}, set(), id="alike"),
        pytest.param({"a": ("uid-a", 50)}, {"b": 60}, set(), id="one lacks"),
        pytest.param(SAME | {"a": ("uid-a", 40)}, {"a": 50}, set(), id="one is older"),
        pytest.param(SAME | {"a": ("uid-a", 120)}, {}, set(), id="one is newer than the list"),
        pytest.param(SAME | {"a": ("uid-x", 45)}, {"a": 50}, set(), id="one was made again"),
        pytest.param(SAME | {"c": ("uid-c", 70)}, {}, {"c"}, id="one is gone"),
        pytest.param(SAME | {"c": ("uid-c", 101)}, {}, set(), id="one was made after the list"),
    ],
)
def test_view_is_compared_by_versions(
    known: dict[str, tuple[str, int]], missing: dict[str, int], gone: set[str]
) -> None:
    assert compare(LISTED, known) == Comparison(missing, frozenset(gone))
