"""kvtier on the tests' cluster: the charts, one class, one pool, and pods that have its volume."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from kvtier_crds.names import ARENA_MOUNT

from dev.cluster import Cluster, Node
from dev.cluster.layout import REPOSITORY
from dev.demo.kube import Kubectl, is_ready
from dev.demo.store import kill_store
from dev.images import Image

SYSTEM: Final = "kvtier-system"
NAMESPACE: Final = "inference"
TIER_CLASS: Final = "flash"
POOL: Final = "chat"
LABEL: Final = "kvtier.io/flash=true"
"""Of the nodes that the class selects."""
READY_S: Final = 120.0
SLEEP: Final = ["python3", "-c", "import time; time.sleep(86_400)"]

Manifest = dict[str, Any]


class Installation:
    """kvtier as its users install it: both charts, and the samples with a test's sizes."""

    def __init__(self, cluster: Cluster, images: dict[str, Image]) -> None:
        self.cluster = cluster
        self.kubectl = Kubectl(cluster.programs["kubectl"], cluster.kubeconfig)
        self._images = images

    def install(self) -> None:
        """Install the charts, a class that has node n1, and a pool; return once the pool is served.

        What is there already stays. Raises CommandFailed, StepFailed.
        """
        charts, install = REPOSITORY / "charts", ("upgrade", "--install", "-n", SYSTEM, "--create-namespace")
        self.cluster.helm(*install, "kvtier-crds", str(charts / "kvtier-crds"))
        tags = [f"--set-string=images.{name}.tag={self._images[name].tag}" for name in ("operator", "agent")]
        self.cluster.helm(*install, "kvtier", str(charts / "kvtier"), *tags)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        self.select("n1")
        self.kubectl.apply([namespace, tier_class(), cache_pool()])
        self.wait_until_served()

    @property
    def sidecar_image(self) -> str:
        """The image of the sidecar, which has the client too."""
        return self._images["sidecar"].reference

    def select(self, node: str) -> None:
        """Give a node the label that the class selects."""
        self.kubectl("label", "node", node, "--overwrite", LABEL)

    def unselect(self, node: str) -> None:
        """Take that label off the node."""
        self.kubectl("label", "node", node, f"{LABEL.partition('=')[0]}-")

    def wait_until_served(self) -> None:
        """Return once the pool is served. Raises StepFailed."""
        self.wait("the pool to be served", lambda: is_ready(self.kubectl.get("cachepool", "-n", NAMESPACE, POOL)))

    def wait(self, what: str, holds: Callable[[], bool], deadline_s: float = READY_S) -> None:
        """Return once `holds()`. Raises StepFailed with what the cluster says."""
        self.kubectl.wait(what, holds, deadline_s, self.explain)

    def explain(self) -> str:
        """What the cluster says about kvtier's resources and pods."""
        return self.kubectl.explain(SYSTEM, "tierclass,cachepool,cachenode", "-A")

    def store_pod(self, node: str = "n1", tier_class: str = TIER_CLASS) -> Manifest:
        """The store's pod on a node. Raises LookupError when there is none."""
        selector = f"kvtier.io/tier-class={tier_class}"
        found = self.kubectl.get("pods", "-n", SYSTEM, "-l", selector, f"--field-selector=spec.nodeName={node}")
        if not found["items"]:
            raise LookupError(f"node {node} has no pod of class {tier_class}")
        pod: Manifest = found["items"][0]
        return pod

    def client_pod(self, name: str, node: str = "n1") -> Path:
        """Start a pod with the pool's volume and the sidecar, and return its client socket as this machine sees it.

        Its engine sleeps: whoever connects to the socket, is the engine.
        """
        return self.start_pod(engine_pod(name, node, self.sidecar_image))

    def start_pod(self, pod: Manifest) -> Path:
        """The same for a pod of any kind, made of `engine_pod`."""
        self.kubectl.apply([pod])
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        get = ("pod", "-n", namespace, name)
        self.kubectl.wait(f"pod {name}", lambda: is_ready(self.kubectl.get(*get)), READY_S, self.explain)
        uid = self.kubectl.get(*get)["metadata"]["uid"]
        root = Path("/proc", str(self.cluster.node(pod["spec"]["nodeName"]).holder), "root")
        return root / f"var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/kvtier/mount/kvtier.sock"

    @contextmanager
    def running_pod(self, pod: Manifest) -> Iterator[Path]:
        """Its client socket within the block; it is gone afterwards."""
        try:
            yield self.start_pod(pod)
        finally:
            self.delete_pod(pod["metadata"]["name"], pod["metadata"]["namespace"])

    def delete_pod(self, name: str, namespace: str = NAMESPACE) -> None:
        """Delete a client pod, and wait until it is gone."""
        self.kubectl("delete", "pod", "-n", namespace, name, "--wait", "--grace-period=1", "--ignore-not-found")

    def kill_store(self, node: str = "n1", tier_class: str = TIER_CLASS) -> None:
        """End the store's process on a node as kill -9 does, and return once its pod is Ready again."""
        pod = self.store_pod(node, tier_class)
        restarts = restart_count(pod)
        kill_store(pod["metadata"]["uid"])
        self.wait("the store's restart", lambda: restart_count(self.store_pod(node, tier_class)) > restarts)
        self.wait("the restarted store to be ready", lambda: is_ready(self.store_pod(node, tier_class)))


def tier_class() -> Manifest:
    """The sample class in a test's sizes."""
    sample = _sample("tierclass")
    sample["spec"]["tiers"]["dram"]["capacityPerNode"] = "512Mi"
    sample["spec"]["tiers"]["nvme"]["capacityPerNode"] = "2Gi"
    return sample


def cache_pool() -> Manifest:
    """The sample pool, with all that the class has."""
    sample = _sample("cachepool")
    sample["spec"]["quota"] = {"dram": "512Mi", "nvme": "2Gi"}
    return sample


def engine_pod(name: str, node: str, image: str) -> Manifest:
    """The sample engine's pod on one node, with an engine that sleeps. `image` is the sidecar's."""
    pod = _sample("engine")
    pod["metadata"]["name"] = name
    spec = pod["spec"]
    spec |= {"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
    spec["initContainers"][0]["image"] = image
    spec["containers"][0] |= {"image": image, "command": SLEEP}
    spec["containers"][0]["resources"] = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    return pod


def kept_on(node: Node) -> list[str]:
    """What a node has of kvtier for a class: the folder on its disk, the arena's folder and mount."""
    folders = f"ls -d /mnt/nvme0/kvtier {ARENA_MOUNT} 2>/dev/null"
    mounts = f"grep -o ' {ARENA_MOUNT} tmpfs ' /proc/self/mounts"
    return node.run("sh", "-c", f"{folders}; {mounts}; true").splitlines()


def medium_holds(node: Node, content: bytes) -> bool:
    """Whether these bytes lie anywhere on the node's nvme device. They are compared, not looked for in an index."""
    device = Path("/proc", str(node.holder), "root/mnt/nvme0/kvtier/kvtier.dev")
    with device.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as medium:
        return medium.find(content) >= 0


def restart_count(pod: Manifest) -> int:
    """How often the pod's containers were restarted."""
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def _sample(name: str) -> Manifest:
    sample: Manifest = yaml.safe_load((REPOSITORY / "samples" / f"{name}.yaml").read_text())
    return sample
