"""The cluster's network: a bridge in the control plane's namespace, with one cable to each node.

All links, addresses and rules are in namespaces of the cluster; the machine's own network stays as it is. The control
plane routes between the nodes' pods. Pods hang on routed links (CNI's `ptp`): on a bridge, a reply between two pods of
one node would bypass the service translation where br_netfilter is absent.
"""

from __future__ import annotations

import json
from pathlib import Path

from dev.cluster import layout
from dev.cluster.processes import inside, run

BRIDGE = "kvtier0"
FORWARDING = "net.ipv4.ip_forward=1"


def in_network(holder: int) -> list[str]:
    """The command that runs what follows it in the network namespace of `holder` alone."""
    return ["nsenter", f"--target={holder}", "--net", "--"]


def make_bridge(control_plane: int) -> None:
    """Give the control plane's namespace its bridge and address."""
    width = layout.MACHINES.prefixlen
    batch(
        control_plane,
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {layout.CONTROL_PLANE}/{width} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    )
    run([*inside(control_plane), "sysctl", "-qw", FORWARDING, "net.ipv4.conf.all.send_redirects=0"])


def join(control_plane: int, node: int, number: int) -> None:
    """Connect the namespace of `node` to the bridge, with the addresses of node `number`."""
    cable = f"node{number}"
    address = layout.node_address(number)
    batch(
        control_plane,
        f"link add {cable} type veth peer name eth0 netns {node}",
        f"link set {cable} master {BRIDGE}",
        f"link set {cable} up",
    )
    batch(
        node,
        "link set lo up",
        f"addr add {address}/{layout.MACHINES.prefixlen} dev eth0",
        "link set eth0 up",
        f"route add default via {layout.CONTROL_PLANE}",
    )
    batch(control_plane, f"route replace {layout.pod_network(number)} via {address}")
    run([*inside(node), "sysctl", "-qw", FORWARDING])


def batch(holder: int, *commands: str) -> None:
    """Carry out commands of `ip` in the network namespace of `holder`."""
    run([*in_network(holder), "ip", "-batch", "-"], input="\n".join(commands) + "\n")


def pod_network_config(number: int, leases: Path) -> str:
    """The CNI configuration of node `number`, which keeps its address leases in `leases`."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(leases),
                        "ranges": [[{"subnet": str(layout.pod_network(number))}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        },
        indent=1,
    )
