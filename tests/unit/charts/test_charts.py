"""What the charts render. That a cluster takes it and runs with it: tests/controlplane and tests/cluster."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml
from kvtier_crds import names
from kvtier_crds.kinds import KINDS
from kvtier_crds.manifest import custom_resource_definition
from kvtier_operator.settings import StoreSettings, read_settings

from tests.unit.charts.conftest import CHARTS, NAMESPACE, Helm

Object = dict[str, Any]
RECOMMENDED = {"name", "instance", "version", "component", "part-of", "managed-by"}
BOTH = pytest.mark.parametrize("chart", ["kvtier", "kvtier-crds"])


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> dict[tuple[str, str], Object]:
    return by_name(helm.render("kvtier"))


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    found = {(o["kind"], o["metadata"]["name"]): o for o in objects}
    assert len(found) == len(objects)
    return found


def container(workload: Object) -> Object:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


@BOTH
def test_chart_passes_lint(helm: Helm, chart: str) -> None:
    result = helm.run("lint", "--strict", str(CHARTS / chart))
    assert result.returncode == 0, result.stdout + result.stderr


@BOTH
def test_every_object_has_the_recommended_labels(helm: Helm, chart: str) -> None:
    for item in helm.render(chart):
        labels = item["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in RECOMMENDED} <= labels.keys(), item["metadata"]["name"]
        assert labels["app.kubernetes.io/instance"] == "demo"


@BOTH
def test_every_value_has_a_comment(chart: str) -> None:
    lines = (CHARTS / chart / "values.yaml").read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        indent = len(line) - len(line.lstrip())
        if re.match(r"\s*[a-zA-Z]+:", line) and indent <= 2:
            grouped = before.strip().endswith(("{}", "[]", '""')) and indent == 2
            assert before.strip().startswith("#") or grouped, f"no comment above {line!r}"


@BOTH
def test_schema_knows_exactly_the_values(chart: str) -> None:
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, value in values.items():
        if isinstance(value, dict):
            assert schema["properties"][name]["additionalProperties"] is False
            assert schema["properties"][name]["properties"].keys() == value.keys()


# ---------------------------------------------------------------------------------- kvtier-crds


def test_crds_chart_renders_what_the_models_say(helm: Helm) -> None:
    found = by_name(helm.render("kvtier-crds"))
    for kind in KINDS:
        wanted = custom_resource_definition(kind)
        got = copy.deepcopy(found.pop(("CustomResourceDefinition", wanted["metadata"]["name"])))
        del got["metadata"]["labels"], got["metadata"]["annotations"]
        assert got == wanted
    assert not found


@pytest.mark.parametrize("keep", [True, False])
def test_crds_are_kept_unless_told_otherwise(helm: Helm, keep: bool) -> None:
    for item in helm.render("kvtier-crds", *([] if keep else ["keep=false"])):
        policy = item["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
        assert policy == ("keep" if keep else None)


# ---------------------------------------------------------------------------------- kvtier


def test_roles_name_every_group_resource_and_verb(rendered: dict[tuple[str, str], Object]) -> None:
    roles = [o for (kind, _), o in rendered.items() if kind in ("Role", "ClusterRole")]
    assert len(roles) == 4
    for role in roles:
        for rule in role["rules"]:
            assert "nonResourceURLs" not in rule
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not [word for word in words if "*" in word], f"{role['metadata']['name']} is too wide"
            assert not {"secrets", "serviceaccounts/token", "pods/exec", "nodes/proxy"} & set(rule["resources"])
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


@pytest.mark.parametrize("account", ["kvtier-node", "kvtier-store"])
def test_agents_may_write_nothing_but_cachenode_status(rendered: dict[tuple[str, str], Object], account: str) -> None:
    rules = rendered["ClusterRole", account]["rules"]
    writes = [r for r in rules if set(r["verbs"]) - {"get", "list", "watch"}]
    assert writes == [{"apiGroups": ["kvtier.io"], "resources": ["cachenodes/status"], "verbs": ["patch"]}]
    assert {resource for r in rules for resource in r["resources"]} == {"cachenodes", "cachenodes/status"}


def test_operator_makes_objects_in_the_release_namespace_only(rendered: dict[tuple[str, str], Object]) -> None:
    cluster_wide = rendered["ClusterRole", "kvtier-operator"]["rules"]
    assert not {"daemonsets", "configmaps"} & {resource for r in cluster_wide for resource in r["resources"]}
    assert rendered["Role", "kvtier-operator"]["metadata"]["namespace"] == NAMESPACE


def test_bindings_name_accounts_that_exist(rendered: dict[tuple[str, str], Object]) -> None:
    bindings = [o for (kind, _), o in rendered.items() if kind.endswith("RoleBinding")]
    assert len(bindings) == 4
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in rendered
        for subject in binding["subjects"]:
            assert rendered["ServiceAccount", subject["name"]]["metadata"]["namespace"] == subject["namespace"]


def test_operator_is_one_restricted_pod(rendered: dict[tuple[str, str], Object]) -> None:
    operator = rendered["Deployment", "kvtier-operator"]
    pod = operator["spec"]["template"]["spec"]
    assert operator["spec"]["replicas"] == 1
    assert operator["spec"]["strategy"] == {"type": "Recreate"}
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container(operator)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(operator)["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_operator_reads_its_settings_from_what_the_chart_passes(helm: Helm) -> None:
    settings = ['images.pullSecrets=[{"name":"one"},{"name":"two"}]', 'images.pullPolicy="Always"']
    operator = by_name(helm.render("kvtier", *settings))["Deployment", "kvtier-operator"]
    env = {e["name"]: e.get("value", NAMESPACE) for e in container(operator)["env"]}

    read = read_settings(env)

    assert read.namespace == NAMESPACE
    assert read.store == StoreSettings(
        image="kvtier.local/agent:0.1.0",
        service_account="kvtier-store",
        pull_policy="Always",
        pull_secrets=("one", "two"),
        priority_class="kvtier-store",
    )
    assert operator["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_node_plugin_runs_on_every_linux_node_whatever_its_taints(rendered: dict[tuple[str, str], Object]) -> None:
    pod = rendered["DaemonSet", "kvtier-node"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["hostNetwork"] is True


def test_node_plugin_mounts_reach_the_node(rendered: dict[tuple[str, str], Object]) -> None:
    workload = rendered["DaemonSet", "kvtier-node"]
    paths = {v["name"]: v["hostPath"] for v in workload["spec"]["template"]["spec"]["volumes"]}
    mounts = {
        m["mountPath"]: (paths[m["name"]]["path"], m["mountPropagation"]) for m in container(workload)["volumeMounts"]
    }
    assert mounts == {
        names.HOST_ROOT: (names.HOST_ROOT, "Bidirectional"),
        "/var/lib/kubelet": ("/var/lib/kubelet", "HostToContainer"),
        "/host": ("/", "HostToContainer"),
    }


def test_kubelet_folder_is_the_same_in_pod_and_environment(helm: Helm) -> None:
    workload = by_name(helm.render("kvtier", 'kubeletDir="/var/lib/k0s/kubelet"'))["DaemonSet", "kvtier-node"]
    env = {e["name"]: e.get("value") for e in container(workload)["env"]}
    volumes = [v["hostPath"]["path"] for v in workload["spec"]["template"]["spec"]["volumes"]]
    assert env["KUBELET_DIR"] == "/var/lib/k0s/kubelet"
    assert "/var/lib/k0s/kubelet" in volumes


def test_driver_tells_the_pod_and_is_ephemeral_only(rendered: dict[tuple[str, str], Object]) -> None:
    driver = rendered["CSIDriver", names.CSI_DRIVER]
    assert driver["metadata"]["labels"]["security.openshift.io/csi-ephemeral-volume-profile"] == "restricted"
    assert driver["spec"] == {
        "podInfoOnMount": True,
        "attachRequired": False,
        "fsGroupPolicy": "None",
        "volumeLifecycleModes": ["Ephemeral"],
    }


def test_store_priority_never_preempts(rendered: dict[tuple[str, str], Object]) -> None:
    priority = rendered["PriorityClass", "kvtier-store"]
    assert (priority["preemptionPolicy"], priority["globalDefault"]) == ("Never", False)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ([], ["kvtier.local/operator:0.1.0", "kvtier.local/agent:0.1.0"]),
        (
            [
                'images.operator={"repository":"reg.example:5000/a/op","tag":"v9"}',
                f'images.agent.tag="v9@sha256:{"0" * 64}"',
            ],
            ["reg.example:5000/a/op:v9", f"kvtier.local/agent:v9@sha256:{'0' * 64}"],
        ),
    ],
    ids=["default", "replaced"],
)
def test_images_come_from_the_values(helm: Helm, settings: list[str], images: list[str]) -> None:
    found = by_name(helm.render("kvtier", *settings))
    operator = container(found["Deployment", "kvtier-operator"])
    env = {e["name"]: e.get("value") for e in operator["env"]}
    node = container(found["DaemonSet", "kvtier-node"])
    assert [operator["image"], node["image"]] == images
    assert env["KVTIER_STORE_IMAGE"] == node["image"]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('kubeletdir="/x"', "kubeletdir"),
        ('kubeletDir="relative"', "kubeletDir"),
        ('kubeletDir="/trailing/"', "kubeletDir"),
        ('logLevel="loud"', "logLevel"),
        ('images.pullPolicy="Sometimes"', "pullPolicy"),
        ('images.pullSecrets=["name"]', "pullSecrets"),
        ('images.agent.repository="Upper.example"', "repository"),
        ('images.operator.tag="a b"', "tag"),
        ('images.store={"repository":"x"}', "store"),
        ('node.tolerations=[{"op":"Exists"}]', "tolerations"),
        ("node.maxUnavailable=0", "maxUnavailable"),
        ('operator.resources={"request":{}}', "resources"),
        ("operator.replicas=2", "replicas"),
        ("store.priority=2000000000", "priority"),
    ],
)
def test_wrong_value_is_refused_by_name(helm: Helm, setting: str, named: str) -> None:
    result = helm.template("kvtier", setting)
    assert result.returncode != 0
    assert named in result.stderr
    assert "values don't meet the specifications of the schema" in result.stderr


@BOTH
def test_chart_can_be_part_of_another(helm: Helm, chart: str) -> None:
    assert helm.render(chart, 'global={"imageRegistry":"x"}')


def test_notes_tell_the_next_step(helm: Helm) -> None:
    shown = helm.run(
        "install",
        "demo",
        str(CHARTS / "kvtier"),
        "--namespace",
        NAMESPACE,
        "--dry-run=client",
        "--kubeconfig=/dev/null",
    )
    notes = shown.stdout.partition("NOTES:")[2]
    assert f"kubectl label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=privileged" in notes
    assert "kubectl apply -f samples/tierclass.yaml -f samples/cachepool.yaml" in notes
