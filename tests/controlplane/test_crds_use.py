"""The resources as people use them: tables, explain, status, samples, and the chart that installs them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from kvtier_crds.kinds import KINDS, WIDE, Kind

from dev.cluster.cluster import Cluster
from tests.controlplane.crds_api import COMMAND_S, REPOSITORY, Api, Object, connect, resource, schema_nodes
from tests.controlplane.test_crds_rules import BASES

WIDEST = 120
CLOUD_NODE = "ip-10-120-137-214.eu-central-1.internal"

TIERS = {
    "dram": {"capacity": "9.5Ti", "used": "8.123Ti"},
    "nvme": {"capacity": "120Ti", "used": "98.75Ti"},
}


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Api:
    return connect(control_plane.programs["kubectl"], control_plane.kubeconfig)


def condition(status: str, reason: str, message: str) -> Object:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


CONDITIONS = [condition("False", "NodesNotReady", "1 of 128 nodes does not serve: n7; see its CacheNode")]
STATUSES: dict[str, Object] = {
    "TierClass": {
        "observedGeneration": 1,
        "nodes": {"desired": 128, "ready": 127, "updated": 128, "summary": "127/128"},
        "tiers": TIERS,
        "hitRatio": "87%",
        "conditions": CONDITIONS,
    },
    "CachePool": {"nodes": 127, "blocks": 12345678, "tiers": TIERS, "hitRatio": "100%", "conditions": CONDITIONS},
    "CacheNode": {"tiers": TIERS, "hitRatio": "7%", "storeVersion": "0.1.0", "conditions": CONDITIONS},
}
NAMES = {"TierClass": "gpu-h200-flash", "CachePool": "chat-8b", "CacheNode": "gpu-a-0042"}


@pytest.fixture
def store(api: Api) -> Iterator[Callable[[str, str], None]]:
    """Store an object of a kind under a name, with a realistic status; it is deleted afterwards."""
    stored: list[Object] = []

    def put(kind: str, name: str) -> None:
        document = resource(kind, BASES[kind], name)
        api.do("apply", "-f-", document=document)
        stored.append(document)
        status = {key: value for key, value in document.items() if key != "spec"} | {"status": STATUSES[kind]}
        writer = ("--server-side", "--subresource=status", "--field-manager=test")
        api.do("apply", *writer, "-f-", document=status)

    yield put
    for document in stored:
        api.do("delete", "--wait=false", "-f-", document=document)


def test_tables_of_all_kinds_fit_in_a_terminal(api: Api, store: Callable[[str, str], None]) -> None:
    for kind, name in NAMES.items():
        store(kind, name)

    shown = api.do("get", "tierclass,cachepool,cachenode", "--namespace=default")

    tables = [table.splitlines() for table in shown.strip().split("\n\n")]
    assert len(tables) == len(KINDS)
    for kind, (head, *rows) in zip(KINDS, tables, strict=True):
        assert head.split() == ["NAME", *(column.name for column in kind.columns if column.priority != WIDE)]
        (row,) = [row.split() for row in rows if NAMES[kind.name] in row]
        cells = dict(zip(head.split(), row, strict=True))
        wanted = {"DRAM": "9.5Ti", "DRAM-USED": "8.123Ti", "NVME": "120Ti", "NVME-USED": "98.75Ti", "READY": "False"}
        assert wanted.items() <= cells.items()
        assert cells["HITS"] == STATUSES[kind.name]["hitRatio"]
        assert max(map(len, [head, *rows])) <= WIDEST, shown


def test_table_of_cloud_nodes_fits_in_a_terminal(api: Api, store: Callable[[str, str], None]) -> None:
    store("CacheNode", CLOUD_NODE)

    shown = api.do("get", "cachenode", CLOUD_NODE)

    assert max(map(len, shown.splitlines())) <= WIDEST, shown


def test_wide_table_adds_reason_and_message(api: Api, store: Callable[[str, str], None]) -> None:
    store("TierClass", "wide")

    shown = api.do("get", "tierclass", "wide", "-owide")

    assert "NodesNotReady" in shown
    assert CONDITIONS[0]["message"] in shown


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kind_answers_to_short_name_and_category(api: Api, store: Callable[[str, str], None], kind: Kind) -> None:
    store(kind.name, "named")
    full = f"{kind.singular}.kvtier.io/named"
    for words in (kind.short_name, kind.plural, "kvtier"):
        assert full in api.do("get", words, "--namespace=default", "-oname").split()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_status_in_a_manifest_is_not_stored(api: Api, kind: Kind) -> None:
    manifest = resource(kind.name, BASES[kind.name]) | {"status": STATUSES[kind.name]}
    assert "status" not in api.admit(manifest)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_explain_lists_every_field(api: Api, kind: Kind) -> None:
    shown = api.do("explain", kind.plural, "--recursive")
    listed = [line.split("\t")[0].strip() for line in shown.splitlines() if "\t<" in line]
    fields = [path.rsplit(".", 1)[-1] for path, _ in schema_nodes(kind) if path and not path.endswith("]")]
    assert {name for name in fields if fields.count(name) > listed.count(name)} == set()


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tierclass.spec.tiers.dram.capacityPerNode", "at least 128Mi"),
        ("tierclass.spec.tiers.nvme.devices.path", "It is never created"),
        ("cachepool.spec.serviceAccounts", "within 5 seconds"),
        ("cachenode.status.conditions.reason", "stable for programs"),
    ],
)
def test_explain_tells_what_a_field_means(api: Api, field: str, words: str) -> None:
    assert words in " ".join(api.do("explain", field).split())


# ---------------------------------------------------------------------------------- samples


@pytest.fixture(scope="module")
def restricted(api: Api) -> Iterator[str]:
    """The samples' namespace, with Pod Security at its strictest."""
    name = "inference"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.do("apply", "-f-", document={
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
    })  # fmt: skip
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    api.do("apply", "--server-side", "-f-", document=account)
    yield name
    api.do("delete", "namespace", name, "--wait=false")


def sample(name: str) -> Object:
    document: Object = yaml.safe_load((REPOSITORY / "samples" / name).read_text())
    return document


@pytest.mark.parametrize("name", sorted(path.name for path in (REPOSITORY / "samples").glob("*.yaml")))
def test_sample_is_admitted_under_restricted_pod_security(api: Api, restricted: str, name: str) -> None:
    stored = api.admit(sample(name))
    assert stored["metadata"].get("namespace", restricted) == restricted


@pytest.mark.usefixtures("restricted")
def test_pod_with_a_host_path_is_refused_where_the_sample_is_not(api: Api) -> None:
    pod = sample("engine.yaml")
    pod["spec"]["volumes"][0] = {"name": "kvtier", "hostPath": {"path": "/run/kvtier"}}
    result = api.run("create", "--dry-run=server", "-f-", document=pod)
    assert result.returncode != 0
    assert 'violates PodSecurity "restricted:latest"' in result.stderr


# ---------------------------------------------------------------------------------- the chart kvtier-crds


@pytest.fixture
def helm(control_plane: Cluster, api: Api) -> Callable[..., str]:
    program = str(control_plane.programs["helm"])

    def run(*arguments: str) -> str:
        command = [program, f"--kubeconfig={api.kubeconfig}", "--namespace=default", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_chart_upgrades_definitions_and_keeps_them_when_uninstalled(
    api: Api, helm: Callable[..., str], store: Callable[[str, str], None], tmp_path: Path
) -> None:
    def description() -> str:
        crd = json.loads(api.do("get", "crd", "tierclasses.kvtier.io", "-ojson"))
        return str(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"])

    store("TierClass", "survivor")
    present = description()
    older = shutil.copytree(REPOSITORY / "charts/kvtier-crds", tmp_path / "older")
    template = older / "templates/tierclasses.yaml"
    template.write_text(template.read_text().replace("A set of nodes and the cache tiers", "An older text"))
    helm("install", "crds-test", str(older), "--take-ownership", "--force-conflicts")
    assert description() != present

    helm("upgrade", "crds-test", str(REPOSITORY / "charts/kvtier-crds"))
    assert description() == present

    helm("uninstall", "crds-test")
    assert "survivor" in api.do("get", "tierclass", "-oname")
