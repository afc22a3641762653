"""A started cluster runs pods as a real one does."""

from __future__ import annotations

import json

import pytest

from dev.cluster import Cluster, CommandFailed
from dev.images import Image
from tests.cluster.pods import RESTRICTED, SERVE, apply, fetch, finished, pod, ready, wait

CALL_API = """
import ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=folder + "ca.crt")
headers = {"Authorization": "Bearer " + open(folder + "token").read()}
request = urllib.request.Request("https://10.96.0.1/api/v1/namespaces/default/pods", headers=headers)
try:
    print(urllib.request.urlopen(request, context=context, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


def test_started_node_is_ready(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    conditions = {c["type"]: c["status"] for c in nodes[0]["status"]["conditions"]}
    assert [node["metadata"]["name"] for node in nodes] == ["n1"]
    assert conditions["Ready"] == "True"


def test_pod_with_native_sidecar_runs_to_its_end(cluster: Cluster, images: dict[str, Image]) -> None:
    reference = images["sidecar"].reference
    cluster.kubectl("create", "namespace", "strict")
    cluster.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    sidecar = {
        "name": "sidecar",
        "image": reference,
        "command": ["python3", "-c", "import time; time.sleep(600)"],
        "restartPolicy": "Always",
        "securityContext": RESTRICTED,
    }
    document = pod("with-sidecar", reference, "import os; print('user', os.getuid())", initContainers=[sidecar])
    document["metadata"]["namespace"] = "strict"
    apply(cluster, document)
    wait(cluster, "pod/with-sidecar", "jsonpath={.status.phase}=Succeeded", "--namespace=strict")
    assert cluster.kubectl("logs", "--namespace=strict", "with-sidecar", "-c", "main").strip() == "user 64101"


def test_privileged_pod_under_restricted_is_refused(cluster: Cluster, images: dict[str, Image]) -> None:
    cluster.kubectl("create", "namespace", "stricter")
    cluster.kubectl("label", "namespace", "stricter", "pod-security.kubernetes.io/enforce=restricted")
    document = pod("mighty", images["sidecar"].reference, "pass", hostNetwork=True)
    document["metadata"]["namespace"] = "stricter"
    with pytest.raises(CommandFailed, match=r"violates PodSecurity .*host namespaces"):
        apply(cluster, document)


def test_pod_calls_the_api_server_through_its_service(cluster: Cluster, images: dict[str, Image]) -> None:
    apply(cluster, pod("caller", images["sidecar"].reference, CALL_API))
    answer = finished(cluster, "caller")
    assert answer.startswith("403")
    assert "system:serviceaccount:default:default" in answer


def test_pod_reaches_a_pod_of_its_own_node_through_a_service(cluster: Cluster, images: dict[str, Image]) -> None:
    reference = images["sidecar"].reference
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "clusterIP": "10.96.7.7", "ports": [{"port": 80, "targetPort": 8080}]},
    }
    apply(cluster, service, pod("server", reference, SERVE))
    ready(cluster, "server")
    apply(cluster, pod("client", reference, fetch("http://10.96.7.7")))
    assert finished(cluster, "client") == "200"


def test_killed_container_restarts_within_seconds(cluster: Cluster, images: dict[str, Image]) -> None:
    document = pod("crashing", images["sidecar"].reference, "raise SystemExit(1)", restartPolicy="Always")
    apply(cluster, document)
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}=5"
    cluster.kubectl("wait", "pod/crashing", f"--for={restarts}", "--timeout=40s", timeout_s=50)


def test_kubelet_identity_may_not_touch_other_nodes(cluster: Cluster) -> None:
    kubelet = cluster.folder / "nodes" / "n1" / "kubelet.kubeconfig"
    kubectl = str(cluster.programs["kubectl"])
    node = cluster.node("n1")
    node.run(kubectl, f"--kubeconfig={kubelet}", "get", "node", "n1")
    with pytest.raises(CommandFailed, match="forbidden"):
        node.run(kubectl, f"--kubeconfig={kubelet}", "label", "node", "n2", "a=b")
    with pytest.raises(CommandFailed, match="forbidden"):
        node.run(kubectl, f"--kubeconfig={kubelet}", "get", "secrets", "--all-namespaces")


def test_disk_of_a_node_takes_direct_io(cluster: Cluster) -> None:
    node = cluster.node("n1")
    node.run("dd", "if=/dev/zero", "of=/mnt/nvme0/direct", "bs=4096", "count=4", "oflag=direct")
    assert (node.disk / "direct").stat().st_size == 4 * 4096
