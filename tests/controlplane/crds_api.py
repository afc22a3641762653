"""The API server as a user meets it, through kubectl, for the tests of the resources."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kvtier_crds.fields import RULES
from kvtier_crds.kinds import Kind
from kvtier_crds.manifest import custom_resource_definition
from kvtier_crds.names import API_VERSION

REPOSITORY = Path(__file__).parents[2]
Object = dict[str, Any]
COMMAND_S = 60


@dataclass(frozen=True)
class Api:
    """kubectl against one API server."""

    kubectl: Path
    kubeconfig: Path

    def run(self, *arguments: str, document: Object | None = None) -> subprocess.CompletedProcess[str]:
        """One command; `document` goes to its standard input."""
        command = [str(self.kubectl), f"--kubeconfig={self.kubeconfig}", "--request-timeout=20s", *arguments]
        text = json.dumps(document) if document else None
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_S)

    def do(self, *arguments: str, document: Object | None = None) -> str:
        """What a command prints that must succeed."""
        result = self.run(*arguments, document=document)
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout

    def admit(self, document: Object) -> Object:
        """The object as the API server would store it; nothing is stored."""
        answer: Object = json.loads(self.do("create", "--dry-run=server", "-ojson", "-f-", document=document))
        return answer

    def faults(self, verb: str, document: Object) -> list[str]:
        """What the API server finds wrong with it."""
        result = self.run(verb, "--dry-run=server", "-f-", document=document)
        assert result.returncode != 0, "it was admitted"
        lead, _, rest = result.stderr.strip().partition(": ")
        assert lead.endswith("is invalid"), result.stderr
        return [line.removeprefix("* ") for line in rest.strip().splitlines()]


def connect(kubectl: Path, kubeconfig: Path) -> Api:
    """The API server behind `kubeconfig`, with the present definitions."""
    api = Api(kubectl, kubeconfig)
    api.do("apply", "--server-side", "--force-conflicts", f"--filename={REPOSITORY / 'crds'}")
    api.do("wait", "--for=condition=Established", "--timeout=30s", f"--filename={REPOSITORY / 'crds'}")
    return api


def resource(kind: str, spec: Mapping[str, Any], name: str = "test") -> Object:
    """A manifest of one of kvtier's kinds."""
    meta = {"name": name} | ({"namespace": "default"} if kind == "CachePool" else {})
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": dict(spec)}


def edited(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Object:
    """A copy of `base` with `changes` by path, such as tiers/dram; `...` takes a field out."""
    copy: Object = yaml.safe_load(yaml.safe_dump(dict(base)))
    for path, value in changes.items():
        *parents, last = path.split("/")
        target: Any = copy
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
        if value is ...:
            del target[last]
        else:
            target[last] = value
    return copy


def schema_nodes(kind: Kind) -> Iterator[tuple[str, Object]]:
    """Every node of a kind's schema by path, such as `spec.tiers.nvme.devices[].path`; the whole is ''."""
    version = custom_resource_definition(kind)["spec"]["versions"][0]
    yield from _below(version["schema"]["openAPIV3Schema"], "")


def schema_rules(kind: Kind) -> Iterator[tuple[str, str]]:
    """Path and message of every CEL rule of a kind."""
    for path, node in schema_nodes(kind):
        for said in node.get(RULES, ()):
            yield path, said["message"]


def _below(node: Object, path: str) -> Iterator[tuple[str, Object]]:
    yield path, node
    if "items" in node:
        yield from _below(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from _below(node["additionalProperties"], f"{path}[*]")
    for name, child in node.get("properties", {}).items():
        yield from _below(child, f"{path}.{name}" if path else name)
