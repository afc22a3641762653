"""A real Kubernetes cluster on one machine: control plane, and nodes in namespaces of their own.

From a shell, as root: `python -m dev.cluster up [--nodes N]`, `down`, `add-node [NAME]`, `kubectl ...`, `helm ...`;
`--name NAME` before the command is for another cluster than `dev`. From Python:

    with Cluster(folder, "mine") as cluster:
        cluster.up(nodes=1)                         # or control_plane_up(): no nodes
        cluster.load_image(archive)                 # into every node, and into those added later
        cluster.kubectl("apply", "-f", "-", input=manifests)
        cluster.helm("install", "kvtier", "charts/kvtier")
        later = cluster.add_node("later")
        later.run("ls", "/mnt/nvme0")               # in the node's mount, PID and network namespaces

`cluster.kubeconfig` works for every client on this machine. All files are under `folder`; no port is opened but one on
loopback; nothing is set on the machine itself. The cluster dies with the process that started it unless it calls
`keep()`. A node's /mnt/nvme0 is a folder on this machine's disk (`node.disk`).
"""

from dev.cluster.cluster import Cluster
from dev.cluster.node import Node
from dev.cluster.processes import CommandFailed
from dev.cluster.progress import ComponentFailed

__all__ = ["Cluster", "CommandFailed", "ComponentFailed", "Node"]
