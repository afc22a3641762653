"""Where a cluster keeps its files, and what its cgroups and addresses are called.

All of it follows from the folder and the name, so that whoever has these two finds what an earlier process left.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "dev"

# Every cluster has network namespaces of its own, so these never meet those of the machine or of another cluster.
MACHINES = IPv4Network("10.99.0.0/24")
PODS = IPv4Network("10.88.0.0/16")
SERVICES = IPv4Network("10.96.0.0/16")
CONTROL_PLANE = MACHINES[1]
API_SERVICE = SERVICES[1]
API_PORT = 6443
LOOPBACK = IPv4Address("127.0.0.1")
FIRST_NODE = 10
MOST_NODES = 200
HELM_FOLDERS = ("CACHE", "CONFIG", "DATA")


@dataclass(frozen=True)
class Layout:
    """The paths and names of the cluster `name` that lives in `folder`."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        """Refuse a name that cannot be part of a cgroup's or a node's name."""
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            raise ValueError(f"cluster name {self.name!r}: use at most 40 lower-case letters, digits and inner hyphens")

    @property
    def cgroup(self) -> str:
        """The cgroup that holds every process of the cluster, relative to each hierarchy's root."""
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        return f"kvtier-{self.name}-{digest}"

    @property
    def logs(self) -> Path:
        """One log file per component; what is kept after the cluster went down."""
        return self.folder / "logs"

    @property
    def certificates(self) -> Path:
        """The certificate authority and all that it issued."""
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for use on this machine, through loopback."""
        return self.folder / "kubeconfig"

    @property
    def etcd(self) -> Path:
        """The cluster's state."""
        return self.folder / "etcd"

    @property
    def images(self) -> Path:
        """The archives that every node loads, also one that is added later."""
        return self.folder / "images"

    @property
    def client_caches(self) -> Path:
        """What kubectl and helm keep between commands."""
        return self.folder / "client-caches"

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables with which kubectl and helm reach the cluster as administrator and keep to its folder."""
        helm = {f"HELM_{kind}_HOME": str(self.client_caches / f"helm-{kind.lower()}") for kind in HELM_FOLDERS}
        return {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.client_caches / "kubectl"), **helm}

    @property
    def holder(self) -> Path:
        """The process ID that holds the control plane's namespaces."""
        return self.folder / "control-plane.pid"

    @property
    def nodes(self) -> Path:
        """One folder per node."""
        return self.folder / "nodes"

    def node(self, name: str) -> NodeLayout:
        """The paths and names of one node."""
        return NodeLayout(self, name)


@dataclass(frozen=True)
class NodeLayout:
    """The paths and names of one node."""

    cluster: Layout
    name: str

    @property
    def folder(self) -> Path:
        """All that the node writes."""
        return self.cluster.nodes / self.name

    @property
    def cgroup(self) -> str:
        """The kubelet's cgroup root, with the node's own processes in a leaf beside the pods."""
        return f"{self.cluster.cgroup}/{self.name}"

    @property
    def runtime_cgroup(self) -> str:
        """Where containerd, kubelet and kube-proxy run (cgroup v2 allows processes in leaves only)."""
        return f"{self.cgroup}/runtime"

    @property
    def holder(self) -> Path:
        """The process ID that holds the node's namespaces."""
        return self.folder / "holder.pid"

    @property
    def number_file(self) -> Path:
        """The node's number, which its addresses follow from."""
        return self.folder / "number"

    @property
    def containerd_config(self) -> Path:
        """containerd's configuration."""
        return self.folder / "containerd.toml"

    @property
    def kubelet_config(self) -> Path:
        """The kubelet's configuration."""
        return self.folder / "kubelet.yaml"

    @property
    def proxy_config(self) -> Path:
        """kube-proxy's configuration."""
        return self.folder / "kube-proxy.yaml"

    @property
    def cni(self) -> Path:
        """The folder with the pod network's configuration."""
        return self.folder / "cni"

    @property
    def resolv_conf(self) -> Path:
        """What pods get as their resolver's configuration: there is no name server."""
        return self.folder / "resolv.conf"

    @property
    def snapshotter(self) -> Path:
        """The name of the snapshotter that the node's containerd uses."""
        return self.folder / "snapshotter"

    def disk(self, name: str) -> Path:
        """The folder on this machine's disk that the node sees as /mnt/NAME."""
        return self.folder / "disks" / name

    def log(self, component: str) -> Path:
        """The log of one of the node's components."""
        return self.cluster.logs / f"{self.name}-{component}.log"


def node_address(number: int) -> IPv4Address:
    """The address of node `number` (from 1)."""
    if not 1 <= number <= MOST_NODES:
        raise ValueError(f"a cluster has at most {MOST_NODES} nodes, asked for number {number}")
    return MACHINES[FIRST_NODE + number]


def pod_network(number: int) -> IPv4Network:
    """The addresses of the pods of node `number` (from 1)."""
    return IPv4Network((int(PODS.network_address) + (number << 8), 24))
