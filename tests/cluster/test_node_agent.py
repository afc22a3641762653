"""kvtier-node under a real kubelet: pods start and end without a store, sockets come back, refusals have words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kvtier_client.client import Client

from dev.demo.kube import StepFailed, is_ready
from dev.images import Image
from tests.cluster.installation import (
    NAMESPACE,
    POOL,
    READY_S,
    SYSTEM,
    TIER_CLASS,
    Installation,
    engine_pod,
)

NODE = "n1"
TAINT = "kvtier.io/test=store-absent:NoExecute"
LAYOUT = bytes(32)
HASHES = [bytes([number]) * 32 for number in range(4)]
VOLUMES = "/run/kvtier/volumes"


@contextmanager
def client_pod(installation: Installation, image: str, name: str) -> Iterator[Path]:
    """A pod with the volume that tolerates every taint, and its client socket; deleted at the end."""
    pod = engine_pod(name, NODE, image)
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    get = ("pod", "-n", NAMESPACE, name)
    try:
        installation.kubectl.apply([pod])
        installation.wait(f"pod {name}", lambda: is_ready(installation.kubectl.get(*get)))
        uid = installation.kubectl.get(*get)["metadata"]["uid"]
        root = Path("/proc", str(installation.cluster.node(NODE).holder), "root")
        yield root / f"var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/kvtier/mount/kvtier.sock"
    finally:
        installation.delete_pod(name)


def answers(socket: Path) -> bool:
    """Whether a store answers a lookup through this socket."""
    with closing(Client(str(socket), deadline_s=5.0)) as client:
        client.lookup(LAYOUT, HASHES)
        return not client.misses


def pool_is_served(installation: Installation) -> bool:
    return is_ready(installation.kubectl.get("cachepool", "-n", NAMESPACE, POOL))


def stores(installation: Installation) -> int:
    return len(installation.kubectl.get("pods", "-n", SYSTEM, "-l", f"kvtier.io/tier-class={TIER_CLASS}")["items"])


def test_pods_start_and_end_while_no_store_runs(installation: Installation, images: dict[str, Image]) -> None:
    image = images["sidecar"].reference
    kubectl = installation.kubectl
    kubectl("taint", "node", NODE, TAINT, "--overwrite")
    try:
        installation.wait("the store to leave", lambda: stores(installation) == 0)
        with client_pod(installation, image, "storeless") as socket:
            assert not answers(socket)
        assert not installation.cluster.node(NODE).run("find", VOLUMES, "-type", "f")
        with client_pod(installation, image, "patient") as socket:
            assert not answers(socket)
            kubectl("taint", "node", NODE, f"{TAINT}-")
            installation.wait("the pod's socket to be answered", lambda: answers(socket))
    finally:
        with suppress(StepFailed):  # taken off already
            kubectl("taint", "node", NODE, f"{TAINT}-")
        installation.wait("the pool to be served", lambda: pool_is_served(installation))


def test_restarted_node_agent_brings_the_sockets_of_running_pods_back(
    installation: Installation, images: dict[str, Image]
) -> None:
    image = images["sidecar"].reference
    select = ("-n", SYSTEM, "-l", "app.kubernetes.io/component=node")
    with client_pod(installation, image, "steady") as socket, closing(Client(str(socket), deadline_s=5.0)) as steady:
        assert answers(socket)
        steady.lookup(LAYOUT, HASHES)
        agent_socket = socket.with_name("agent.sock")
        before = agent_socket.lstat().st_ino
        installation.kubectl("delete", "pod", *select, "--wait")
        steady.lookup(LAYOUT, HASHES)
        assert not steady.misses, "an open connection needs no kvtier-node"
        installation.wait(
            "kvtier-node to be back",
            lambda: (
                all(is_ready(pod) for pod in installation.kubectl.get("pods", *select)["items"])
                and agent_socket.lstat().st_ino != before
            ),
        )
        installation.wait("a new connection to be answered", lambda: answers(socket), READY_S)
        steady.lookup(LAYOUT, HASHES)
        assert not steady.misses


def test_volume_without_pool_says_what_to_write(installation: Installation, images: dict[str, Image]) -> None:
    name = "poolless"
    pod = engine_pod(name, NODE, images["sidecar"].reference)
    del pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]
    events = ("events", "-n", NAMESPACE, f"--field-selector=involvedObject.name={name},reason=FailedMount")

    def said() -> bool:
        found = installation.kubectl.get(*events)["items"]
        return any("write `volumeAttributes: {pool: NAME}`" in event["message"] for event in found)

    installation.kubectl.apply([pod])
    try:
        installation.wait("an event that says what to write", said)
    finally:
        installation.delete_pod(name)
