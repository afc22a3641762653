"""From a pydantic model to the structural OpenAPI schema that a CRD takes.

References are put in place, optional fields lose their null, and what only pydantic needs is dropped.
"""

from __future__ import annotations

from typing import Any, Final

from kvtier_crds.fields import PATTERN_MESSAGE, RULES, Model

Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "minimum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    RULES,
)
_RULE: Final = ("rule", "message", "fieldPath")
_DROPPED: Final = ("title", "$defs", "$ref", "anyOf", "properties", "items", "additionalProperties", PATTERN_MESSAGE)


class NotStructural(Exception):
    """A model uses something that a CRD's schema cannot say. Change the model."""

    def __init__(self, path: str, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(f"{path or 'the model'}: {what}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.what)


def structural_schema(model: type[Model]) -> Schema:
    """The schema of `model` for a CRD.

    Raises NotStructural for what a CRD cannot say.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(schema, schema.get("$defs", {}), "")


def without_rules(node: Schema) -> Schema:
    """The same schema without CEL rules, for objects made by the operator from others that were checked.

    Rules inside long lists would also cost more than the API server lets a schema cost.
    """
    result = {key: value for key, value in node.items() if key != RULES}
    if "items" in node:
        result["items"] = without_rules(node["items"])
    if "properties" in node:
        result["properties"] = {name: without_rules(child) for name, child in node["properties"].items()}
    return result


def _convert(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    node = _resolve(node, definitions, path)
    unknown = node.keys() - set(_KEPT) - set(_DROPPED)
    if unknown:
        raise NotStructural(path, f"a CRD has no {', '.join(sorted(unknown))}")
    if "type" not in node:
        raise NotStructural(path, "no single type")
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if RULES in node:
        result[RULES] = [{key: said[key] for key in _RULE if key in said} for said in node[RULES]]
    if node["type"] == "integer":
        result["format"] = "int64"
    if PATTERN_MESSAGE in node:
        pattern = result.pop("pattern")
        said = {"rule": f"self.matches({_cel_string(pattern)})", "message": node[PATTERN_MESSAGE]}
        result[RULES] = [said, *result.get(RULES, [])]
    if "items" in node:
        result["items"] = _convert(node["items"], definitions, f"{path}[]")
    if "properties" in node:
        result["properties"] = {
            name: _convert(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()
        }
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], definitions, f"{path}.*")
    return result


def _resolve(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    """The node with its reference put in place and its null alternative taken out."""
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        if len(choices) != 1:
            raise NotStructural(path, "a field has one type, or one type and None")
        outer = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        if node.get("default") is not None:
            outer["default"] = node["default"]
        return _resolve(choices[0], definitions, path) | outer
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        outer = {key: value for key, value in node.items() if key != "$ref"}
        return _resolve(target, definitions, path) | outer
    return node


def _cel_string(text: str) -> str:
    if "'" in text:
        raise NotStructural("", f"pattern {text} holds a quote")
    return f"r'{text}'"
