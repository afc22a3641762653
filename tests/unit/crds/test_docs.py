"""docs/resources.md shows every field, rule and reason, in tables that a reader's Markdown understands."""

from __future__ import annotations

import re

import pytest
from kvtier_crds.conditions import CONDITIONS
from kvtier_crds.docs import resources_page
from kvtier_crds.fields import RULES
from kvtier_crds.kinds import KINDS, Kind

from tests.unit.crds.test_schema import nodes_below, schema_of

PAGE = resources_page(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_page_has_a_row_for_every_field_and_rule(kind: Kind) -> None:
    section = PAGE.split(f"\n## {kind.name}\n")[1].split("\n## ")[0]
    for part in ("spec", "status"):
        for path, node in nodes_below(schema_of(kind)["properties"][part], part):
            if path != part and not path.endswith("]"):
                assert f"| `{path}` |" in section
            for said in node.get(RULES, ()):
                assert f"| {said['message']} |" in section


def test_page_explains_every_reason() -> None:
    for condition in CONDITIONS:
        for text in condition.reasons:
            assert f"| `{text.reason}` | {text.status} |" in PAGE


def test_every_table_row_has_the_cells_of_its_head() -> None:
    cells = 0
    for line in PAGE.splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert cells in (0, count) or count == 0, line
        cells = count
