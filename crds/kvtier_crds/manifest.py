"""The CRD of a kind, as an object, as YAML, and as a template of the chart kvtier-crds."""

from __future__ import annotations

from typing import Any, Final

import yaml

from kvtier_crds.fields import RULES
from kvtier_crds.kinds import Column, Kind
from kvtier_crds.names import GROUP, VERSION
from kvtier_crds.schema import structural_schema, without_rules

HEADER: Final = "# Generated from crds/kvtier_crds; change the models and run `make crds`.\n"
CHART_METADATA: Final = """\
  labels:
    {{- include "kvtier-crds.labels" . | nindent 4 }}
  {{- if .Values.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def custom_resource_definition(kind: Kind) -> dict[str, Any]:
    """The CRD of `kind`, ready for the API server."""
    spec = structural_schema(kind.spec)
    schema: dict[str, Any] = {
        "description": kind.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Version of the schema: {GROUP}/{VERSION}.", "type": "string"},
            "kind": {"description": f"{kind.name}.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": spec if kind.written_by_people else without_rules(spec),
            "status": structural_schema(kind.status),
        },
    }
    if kind.rules:
        schema[RULES] = list(kind.rules)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": ["kvtier"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def crd_yaml(kind: Kind) -> str:
    """The CRD of `kind` as a file for `kubectl apply`."""
    return HEADER + _dump(custom_resource_definition(kind))


def crd_template(kind: Kind) -> str:
    """The CRD of `kind` as a template: the same, with the chart's labels and its resource policy.

    A template, not a file under the chart's `crds/`, since `helm upgrade` never upgrades those.
    """
    text = _dump(custom_resource_definition(kind))
    if "{{" in text:
        raise ValueError(f"{kind.name}: `{{{{` in a text would be read as a template; word it differently")
    name = f"  name: {kind.plural}.{GROUP}\n"
    return HEADER + text.replace(name, name + CHART_METADATA, 1)


def _column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "description": column.description,
        "jsonPath": column.path,
    }
    return shown | ({"priority": column.priority} if column.priority else {})


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: the same rule in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  named by the base
        return True


def _dump(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
