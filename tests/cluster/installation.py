"""kvtier on the tests' cluster: the charts, one class, one pool, and pods that have its volume."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from dev.cluster import Cluster
from dev.cluster.layout import REPOSITORY
from dev.cluster.progress import wait_until
from dev.demo.kube import Kubectl, is_ready
from dev.images import Image

SYSTEM: Final = "kvtier-system"
NAMESPACE: Final = "inference"
TIER_CLASS: Final = "flash"
POOL: Final = "chat"
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
        """Install the charts, a class that selects every node, and a pool; return once the pool is served.

        Raises CommandFailed, StepFailed.
        """
        charts = REPOSITORY / "charts"
        self.cluster.helm("install", "kvtier-crds", str(charts / "kvtier-crds"), "-n", SYSTEM, "--create-namespace")
        tags = [f"--set=images.{name}.tag={self._images[name].tag}" for name in ("operator", "agent")]
        self.cluster.helm("install", "kvtier", str(charts / "kvtier"), "-n", SYSTEM, *tags)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        self.kubectl.apply([namespace, tier_class(), cache_pool()])
        self.wait("the pool to be served", lambda: is_ready(self.kubectl.get("cachepool", "-n", NAMESPACE, POOL)))

    def wait(self, what: str, holds: Callable[[], bool], deadline_s: float = READY_S) -> None:
        """Return once `holds()`. Raises StepFailed with what the cluster says."""
        self.kubectl.wait(what, holds, deadline_s, self.explain)

    def explain(self) -> str:
        """What the cluster says about kvtier's resources and pods."""
        return self.kubectl.explain(SYSTEM, "tierclass,cachepool,cachenode", "-A")

    def store_pod(self, node: str = "n1") -> Manifest:
        """The store's pod on a node. Raises LookupError when there is none."""
        selector = f"kvtier.io/tier-class={TIER_CLASS}"
        found = self.kubectl.get("pods", "-n", SYSTEM, "-l", selector, f"--field-selector=spec.nodeName={node}")
        if not found["items"]:
            raise LookupError(f"node {node} has no pod of class {TIER_CLASS}")
        pod: Manifest = found["items"][0]
        return pod

    def client_pod(self, name: str, node: str = "n1") -> Path:
        """Start a pod with the pool's volume and the sidecar, and return its client socket as this machine sees it.

        Its engine sleeps: whoever connects to the socket, is the engine.
        """
        self.kubectl.apply([engine_pod(name, node, self._images["sidecar"].reference)])
        get = ("pod", "-n", NAMESPACE, name)
        self.kubectl.wait(f"pod {name}", lambda: is_ready(self.kubectl.get(*get)), READY_S, self.explain)
        uid = self.kubectl.get(*get)["metadata"]["uid"]
        return Path("/proc", str(find_process(uid, "kvtier-sidecar")), "root/run/kvtier/kvtier.sock")

    def delete_pod(self, name: str) -> None:
        """Delete a client pod, and wait until it is gone."""
        self.kubectl("delete", "pod", "-n", NAMESPACE, name, "--wait", "--grace-period=1", "--ignore-not-found")
