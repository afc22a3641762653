"""A node: its namespaces, its containerd, kubelet and kube-proxy, and commands inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups, mounts, network, node_config
from dev.cluster import layout as places
from dev.cluster.certificates import Authority, kubeconfig
from dev.cluster.controlplane import ControlPlane, hold
from dev.cluster.layout import NodeLayout
from dev.cluster.machine import Machine
from dev.cluster.processes import CommandFailed, Process, inside, run, start
from dev.cluster.progress import wait_until

DISKS = ("nvme0",)
CONTAINERD_S = 60.0
READY_S = 120.0
IMPORT_S = 300.0


class NodeGone(Exception):
    """The node is not running (any more); add it before using it."""


@dataclass(frozen=True)
class Node:
    """A running node of a cluster."""

    layout: NodeLayout

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.layout.name

    @property
    def holder(self) -> int:
        """The first process of the node, by its ID on this machine. Raises NodeGone."""
        with contextlib.suppress(OSError, ValueError):
            holder = int(self.layout.holder.read_text())
            # After a crash the number may belong to a stranger: only the cgroup tells.
            if holder in cgroups.processes(self.layout.cgroup):
                return holder
        raise NodeGone(f"node {self.name} of {self.layout.cluster.folder} is not running")

    @property
    def disk(self) -> Path:
        """Where the node's /mnt/nvme0 lies on this machine."""
        return self.layout.disk(DISKS[0])

    def run(self, *command: str, input: str | None = None, timeout_s: float = 60.0) -> str:  # noqa: A002
        """What `command` prints when run as root in all of the node's namespaces. Raises CommandFailed, NodeGone."""
        return run([*inside(self.holder), *command], input=input, timeout_s=timeout_s)

    def load_image(self, archive: Path) -> None:
        """Make the images in an archive known to the node's kubelet. Raises CommandFailed, NodeGone."""
        snapshotter = f"--snapshotter={self.layout.snapshotter.read_text()}"
        arguments = ("--namespace=k8s.io", "images", "import", snapshotter, str(archive))
        self.run("ctr", *arguments, timeout_s=IMPORT_S)


@dataclass(frozen=True)
class NodeStarter:
    """Starts nodes of one cluster."""

    control_plane: ControlPlane
    control_plane_holder: int
    programs: Mapping[str, Path]
    machine: Machine

    def start(self, layout: NodeLayout, number: int, images: list[Path]) -> Node:
        """Start node `number` and return it once the API server calls it Ready.

        Raises ComponentFailed when a part ends or does not get ready.
        """
        cgroups.create(layout.runtime_cgroup)
        self._configure(layout, number)
        holder = hold(layout.name, layout.holder, layout.log("holder"), layout.runtime_cgroup)
        network.join(self.control_plane_holder, holder, number)
        run([*inside(holder), "sh", "-s"], input=mounts.script(layout, DISKS))
        node = Node(layout)
        containerd = self._containerd(layout, holder)
        for archive in images:
            node.load_image(archive)
        kubelet = self._start(layout, holder, "kubelet", kubelet_arguments(layout, number))
        proxy = self._start(layout, holder, "kube-proxy", [f"--config={layout.proxy_config}"])
        watched = [kubelet, containerd, proxy]
        wait_until(f"node {layout.name} is Ready", lambda: self._ready(layout.name), READY_S, watched)
        return node

    def _configure(self, layout: NodeLayout, number: int) -> None:
        """Write the node's configuration and identity."""
        mounts.prepare(layout, DISKS)
        layout.number_file.write_text(str(number))
        layout.snapshotter.write_text(self.machine.snapshotter)
        layout.resolv_conf.write_text("")
        layout.cni.mkdir(exist_ok=True)
        (layout.cni / "10-pods.conflist").write_text(network.pod_network_config(number, layout.folder / "leases"))
        certificates = layout.cluster.certificates
        layout.containerd_config.write_text(node_config.containerd(layout, self.machine))
        layout.kubelet_config.write_text(node_config.kubelet(layout, number, certificates / "ca.crt"))
        proxy = self.control_plane.kubeconfig_of("kube-proxy")
        layout.proxy_config.write_text(node_config.kube_proxy(layout, proxy))
        authority = Authority.load(certificates / "ca")
        identity = authority.client(f"system:node:{layout.name}", "system:nodes")
        kubelet_kubeconfig(layout).write_text(kubeconfig(self.control_plane.server, authority, identity))

    def _containerd(self, layout: NodeLayout, holder: int) -> Process:
        command = [*inside(holder), "containerd", f"--config={layout.containerd_config}"]
        log = layout.log("containerd")
        process = start("containerd", command, cgroup=layout.runtime_cgroup, log=log)
        wait_until(f"containerd of {layout.name} answers", lambda: answers(holder), CONTAINERD_S, [process])
        return process

    def _start(self, layout: NodeLayout, holder: int, name: str, arguments: list[str]) -> Process:
        command = [*inside(holder), str(self.programs[name]), *arguments]
        return start(name, command, cgroup=layout.runtime_cgroup, log=layout.log(name))

    def _ready(self, name: str) -> bool:
        """Whether the API server calls the node Ready."""
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        with contextlib.suppress(CommandFailed):
            return self.control_plane.kubectl("get", "node", name, f"--output=jsonpath={path}") == "True"
        return False


def answers(holder: int) -> bool:
    """Whether containerd answers in the namespaces of `holder`."""
    with contextlib.suppress(CommandFailed):
        run([*inside(holder), "ctr", "--namespace=k8s.io", "version"], timeout_s=10)
        return True
    return False


def kubelet_kubeconfig(layout: NodeLayout) -> Path:
    """The kubelet's own identity: it may do what the Node authorizer allows this one node."""
    return layout.folder / "kubelet.kubeconfig"


def kubelet_arguments(layout: NodeLayout, number: int) -> list[str]:
    """What the kubelet is told beside its configuration file."""
    return [
        f"--config={layout.kubelet_config}",
        f"--kubeconfig={kubelet_kubeconfig(layout)}",
        f"--hostname-override={layout.name}",
        f"--node-ip={places.node_address(number)}",
    ]
