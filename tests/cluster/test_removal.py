"""What is deleted is gone: a pool's blocks, a class with all it had on the nodes, kvtier but for its definitions."""

from __future__ import annotations

from contextlib import closing

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from dev.demo.kube import is_ready
from tests.cluster.blocks import Prompt
from tests.cluster.installation import (
    NAMESPACE,
    SYSTEM,
    TIER_CLASS,
    Installation,
    cache_pool,
    engine_pod,
    kept_on,
    medium_holds,
)

BRIEF = "brief"
NODE = "n1"
IMPATIENT_S = 0.3
KINDS = ("cachenodes", "cachepools", "tierclasses")


def test_deleted_pool_is_purged_and_its_name_starts_empty(installation: Installation) -> None:
    kubectl, node = installation.kubectl, installation.cluster.node(NODE)
    prompt = Prompt("of-a-brief-pool")
    manifest = cache_pool()
    manifest["metadata"]["name"] = BRIEF
    manifest["spec"]["quota"] = {"dram": "64Mi", "nvme": "256Mi"}
    named = ("cachepool", BRIEF, "-n", NAMESPACE)
    pod = engine_pod("of-the-brief-pool", NODE, installation.sidecar_image)
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]["pool"] = BRIEF

    def places() -> list[str]:
        """Where the pool's blocks lie on the node: its arena has its UID's name, and the media are what they are."""
        arena = node.run("find", "/run/kvtier/arena", "-name", f"*{uid}*")
        return ["arena"] * bool(arena) + ["nvme"] * medium_holds(node, prompt.page(0)[:64])

    kubectl.apply([manifest])
    uid = kubectl.get(*named)["metadata"]["uid"]
    with installation.running_pod(pod) as socket, closing(Client(socket)) as client:
        installation.wait("the pool to be served", lambda: is_ready(kubectl.get(*named)))
        prompt.store(client, Reach.FLUSHED)
        assert prompt.is_whole(client)
        assert places() == ["arena", "nvme"]
        kubectl("delete", *named)
        installation.wait("the pool's blocks to go", lambda: not places())
        assert prompt.restore(client, IMPATIENT_S).blocks == 0
        kubectl.apply([manifest])
        installation.wait("the new pool to be served", lambda: is_ready(kubectl.get(*named)))
        installation.wait("the client of the old pool", lambda: Prompt("anew").is_taken(client))
        assert prompt.restore(client).blocks == 0
        assert Prompt("anew").is_whole(client)
    kubectl("delete", *named)


def test_deleted_class_and_uninstalled_kvtier_leave_only_definitions(installation: Installation) -> None:
    kubectl, cluster = installation.kubectl, installation.cluster
    pod = engine_pod("outlives-the-class", NODE, installation.sidecar_image)
    try:
        with installation.running_pod(pod) as socket, closing(Client(socket)) as client:
            Prompt("of-the-class").store(client)
            assert len(kept_on(cluster.node(NODE))) == 3
            delete_class(installation)
            assert [kept_on(node) for node in cluster.nodes()] == [[] for _ in cluster.nodes()]
            assert Prompt("of-the-class").restore(client, IMPATIENT_S).blocks == 0
            assert is_ready(kubectl.get("pod", "-n", NAMESPACE, "outlives-the-class"))
        cluster.helm("uninstall", "kvtier", "-n", SYSTEM, "--wait")
        cluster.helm("uninstall", "kvtier-crds", "-n", SYSTEM)
        installation.wait("kvtier's pods to go", lambda: not kubectl.get("pods", "-n", SYSTEM)["items"])
        assert names_of_kvtier(installation, "crd") == [
            f"customresourcedefinition.apiextensions.k8s.io/{kind}.kvtier.io" for kind in KINDS
        ]
        cluster_wide = "clusterrole,clusterrolebinding,csidriver,priorityclass,validatingadmissionpolicy"
        assert names_of_kvtier(installation, cluster_wide) == []
        installation.wait("the driver to go", lambda: not kubectl.get("csinode", NODE)["spec"].get("drivers"))
    finally:
        installation.install()


def delete_class(installation: Installation) -> None:
    """Delete all pools and the class, as docs/install says, and see that nothing the operator made remains."""
    kubectl = installation.kubectl
    kubectl("delete", "cachepool", "--all", "-A")
    kubectl("delete", "tierclass", TIER_CLASS, "--wait=false")
    installation.wait("the class to go", lambda: not kubectl.get("tierclass")["items"])
    assert not kubectl.get("cachenode")["items"]
    assert not kubectl.get("daemonset,configmap", "-n", SYSTEM, "-l", f"kvtier.io/tier-class={TIER_CLASS}")["items"]


def names_of_kvtier(installation: Installation, kinds: str) -> list[str]:
    """What there is of these kinds with kvtier in its name."""
    return [name for name in installation.kubectl("get", kinds, "-o", "name").split() if "kvtier" in name]
