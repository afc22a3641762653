"""Documentation from the models and the list of conditions: docs/resources.md, and the faults in docs/operations.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kvtier_crds.conditions import CONDITIONS
from kvtier_crds.fields import RULES
from kvtier_crds.kinds import WIDE, Kind
from kvtier_crds.manifest import custom_resource_definition
from kvtier_crds.names import API_VERSION

Schema = dict[str, Any]

FAULTS_BEGIN: Final = "<!-- conditions: generated from crds/kvtier_crds/conditions.py by `make crds` -->\n"
FAULTS_END: Final = "<!-- end of conditions -->\n"
_NOTHING_TO_DO: Final = ("Nothing to do.", "Wait for it.", "Wait.")
INTRODUCTION: Final = f"""\
<!-- Generated from crds/kvtier_crds; change the models and run `make crds`. -->
# Resources

The kinds of `{API_VERSION}`. The same texts come from the cluster itself: `kubectl explain tierclass.spec.tiers`.

- Sizes are Kubernetes quantities in bytes: `8Gi`, `500M`, `1.5Ti`.
- The API server refuses what is wrong within an object, with the messages listed under *Rules*. What depends on another
  object (a class that is not there yet, a node without room) is a condition, so that a folder of manifests can be
  applied in any order.
- `kubectl get kvtier -A` lists everything; `-o wide` adds the reason; `kubectl describe` explains it.
"""


def resources_page(kinds: Sequence[Kind]) -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(_kind_section(kind) for kind in kinds)]).rstrip() + "\n"


def fill_faults(page: str) -> str:
    """The page with the table of faults between its two marks. Raises ValueError where they are missing."""
    head, begin, rest = page.partition(FAULTS_BEGIN)
    _, end, tail = rest.partition(FAULTS_END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {FAULTS_BEGIN!r} and {FAULTS_END!r}")
    return f"{head}{begin}{_faults()}{end}{tail}"


def _faults() -> str:
    """Every reason that needs a person, by name; alike ones of several conditions in one row.

    What a TierClass repeats of its nodes is told in the node's words, which say more.
    """
    rows: dict[tuple[str, str, str], list[str]] = {}
    for condition in sorted(CONDITIONS, key=lambda condition: condition.kind == "TierClass"):
        for text in condition.reasons:
            if text.remedy not in _NOTHING_TO_DO:
                told = [key for key in rows if key[0] == text.reason and rows[key][0].startswith("CacheNode")]
                repeated = condition.kind == "TierClass" and told
                key = told[0] if repeated else (text.reason.value, text.meaning, text.remedy)
                rows.setdefault(key, []).append(f"{condition.kind} {condition.type}={text.status}")
    listed = ((f"`{key[0]}`", ", ".join(rows[key]), key[1], key[2]) for key in sorted(rows))
    return _table(("reason", "of", "meaning", "what to do"), listed)


def _kind_section(kind: Kind) -> str:
    schema = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    scope = "Cluster-wide" if kind.scope == "Cluster" else "Namespaced"
    parts = [
        f"## {kind.name}\n\n{kind.description}\n",
        f"{scope}; short name `{kind.short_name}`.\n",
        f"### {kind.name} fields\n\n" + _table(("field", "type", "meaning"), _field_rows(schema)),
        *_rules_section(kind, schema),
        f"### {kind.name} columns\n\n" + _table(("column", "meaning"), _column_rows(kind)),
        f"### {kind.name} conditions\n\n" + "\n".join(_condition_sections(kind)),
    ]
    return "\n".join(parts)


def _field_rows(schema: Schema) -> Iterator[tuple[str, ...]]:
    for name in ("spec", "status"):
        yield from _rows_below(schema["properties"][name], name)


def _rows_below(node: Schema, path: str) -> Iterator[tuple[str, ...]]:
    required = node.get("required", ())
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}"
        yield f"`{here}`", _type_words(child, name in required), child["description"]
        if child["type"] == "array":
            yield from _rows_below(child["items"], f"{here}[]")
        else:
            yield from _rows_below(child, here)


def _type_words(node: Schema, required: bool) -> str:
    words = _type_name(node)
    if "enum" in node:
        words = ", ".join(f"`{value}`" for value in node["enum"])
    if required:
        words += "; required"
    if "default" in node:
        shown = str(node["default"]).lower() if isinstance(node["default"], bool) else node["default"]
        words += f"; default `{shown}`"
    return words


def _type_name(node: Schema) -> str:
    if node["type"] == "array":
        keys = node.get("x-kubernetes-list-map-keys")
        return f"list of {_type_name(node['items'])}" + (f", key `{keys[0]}`" if keys else "")
    if "additionalProperties" in node:
        return "map of strings"
    return "time" if node.get("format") == "date-time" else str(node["type"])


def _rules_section(kind: Kind, schema: Schema) -> Iterator[str]:
    if kind.written_by_people:
        yield f"### {kind.name} rules\n\n" + _table(("field", "the API server says"), _rule_rows(schema))


def _rule_rows(schema: Schema) -> Iterator[tuple[str, ...]]:
    for said in schema.get(RULES, ()):
        yield "`metadata.name`", said["message"]
    yield from _rules_below(schema["properties"]["spec"], "spec")


def _rules_below(node: Schema, path: str) -> Iterator[tuple[str, ...]]:
    for said in node.get(RULES, ()):
        yield f"`{path}{said.get('fieldPath', '')}`", said["message"]
    if "items" in node:
        yield from _rules_below(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from _rules_below(node["additionalProperties"], f"{path}[*]")
    for name, child in node.get("properties", {}).items():
        yield from _rules_below(child, f"{path}.{name}")


def _column_rows(kind: Kind) -> Iterator[tuple[str, ...]]:
    for column in kind.columns:
        yield column.name, column.description + (" With `-o wide`." if column.priority == WIDE else "")


def _condition_sections(kind: Kind) -> Iterator[str]:
    for condition in CONDITIONS:
        if condition.kind == kind.name:
            rows = ((f"`{r.reason}`", r.status, r.meaning, r.remedy) for r in condition.reasons)
            yield (
                f"**{condition.type}**, written by {condition.writer}. True says: {condition.meaning}\n\n"
                + _table(("reason", "status", "meaning", "what to do"), rows)
            )


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
