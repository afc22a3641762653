"""From models to structural schemas. That the API server takes them and enforces them: tests/controlplane."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any

import pytest
from kvtier_crds.fields import RULES, DnsLabel, Model, rule, rules
from kvtier_crds.kinds import KINDS, Kind
from kvtier_crds.manifest import custom_resource_definition
from kvtier_crds.schema import NotStructural, structural_schema
from pydantic import Field


def nodes_below(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema node with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes_below(child, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "[*]")):
        if key in node:
            yield from nodes_below(node[key], path + mark)


def schema_of(kind: Kind) -> dict[str, Any]:
    version = custom_resource_definition(kind)["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


ALL_NODES = [
    pytest.param(path, node, id=f"{kind.name}:{path}")
    for kind in KINDS
    for part in ("spec", "status")
    for path, node in nodes_below(schema_of(kind)["properties"][part], part)
]


@pytest.mark.parametrize(("path", "node"), ALL_NODES)
def test_schema_node_is_structural_and_described(path: str, node: dict[str, Any]) -> None:
    assert node["type"] in ("object", "array", "string", "integer", "boolean")
    assert not node.keys() & {"title", "$ref", "$defs", "anyOf", "allOf", "oneOf", "nullable"}
    assert not [key for key in node if key.startswith("x-kvtier-")]
    if not path.endswith("]"):
        assert len(node["description"]) >= 7, "kubectl explain has nothing to say"


@pytest.mark.parametrize(("path", "node"), ALL_NODES)
def test_rule_says_what_to_change(path: str, node: dict[str, Any]) -> None:
    assert path
    for said in node.get(RULES, ()):
        assert said["message"]
        assert said["message"] != said["rule"]


class Colour(StrEnum):
    RED = "red"


class Inner(Model):
    """Inner text."""

    name: DnsLabel = Field(description="Name.", json_schema_extra=rules(rule("self != 'x'", "not x")))


class Outer(Model):
    """Outer text."""

    plain_name: str = Field(description="Text.")
    colour: Colour = Field(default=Colour.RED, description="Colour.")
    inner: Inner | None = Field(default=None, description="Its own text.")
    many: list[Inner] = Field(default_factory=list, description="Many.")
    when: datetime | None = Field(default=None, description="When.")
    flag: bool = Field(default=False, description="Flag.")
    count: int | None = Field(default=None, ge=0, description="Count.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels.")


def test_model_becomes_a_structural_schema() -> None:
    inner_name = {
        "description": "Name.",
        "type": "string",
        "minLength": 1,
        "maxLength": 63,
        RULES: [
            {
                "rule": "self.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "must consist of lower-case letters, digits and `-`, "
                "and begin and end with a letter or digit",
            },
            {"rule": "self != 'x'", "message": "not x"},
        ],
    }
    inner = {"type": "object", "required": ["name"], "properties": {"name": inner_name}}
    assert structural_schema(Outer) == {
        "description": "Outer text.",
        "type": "object",
        "required": ["plainName"],
        "properties": {
            "plainName": {"description": "Text.", "type": "string"},
            "colour": {"description": "Colour.", "type": "string", "enum": ["red"], "default": "red"},
            "inner": {"description": "Its own text."} | inner,
            "many": {"description": "Many.", "type": "array", "items": {"description": "Inner text."} | inner},
            "when": {"description": "When.", "type": "string", "format": "date-time"},
            "flag": {"description": "Flag.", "type": "boolean", "default": False},
            "count": {"description": "Count.", "type": "integer", "format": "int64", "minimum": 0},
            "labels": {"description": "Labels.", "type": "object", "additionalProperties": {"type": "string"}},
        },
    }


class TwoTypes(Model):
    """A field of two types."""

    value: int | str = Field(description="Either.")


class Anything(Model):
    """A field of any type."""

    value: Any = Field(description="Anything.")


class UpperBound(Model):
    """A bound that no field has had so far."""

    value: int = Field(description="Number.", multiple_of=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TwoTypes, ".value: a field has one type, or one type and None"),
        (Anything, ".value: no single type"),
        (UpperBound, ".value: a CRD has no multipleOf"),
    ],
)
def test_model_that_a_crd_cannot_say_is_refused(model: type[Model], message: str) -> None:
    with pytest.raises(NotStructural) as caught:
        structural_schema(model)
    assert str(caught.value) == message
