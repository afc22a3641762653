"""Two nodes on one machine are as apart, and as connected, as two machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.cluster import Cluster, CommandFailed, Node
from dev.images import Image
from tests.cluster.pods import SERVE, apply, fetch, finished, on_node, pod, ready

LATER = "later"


@pytest.fixture(scope="module")
def later(cluster: Cluster) -> Iterator[Node]:
    """A second node, added after the images were loaded."""
    yield cluster.add_node(LATER)
    cluster.remove_node(LATER)
    cluster.kubectl("delete", "node", LATER)


def test_node_added_later_has_the_images(cluster: Cluster, later: Node, images: dict[str, Image]) -> None:
    apply(cluster, on_node(pod("on-later", images["sidecar"].reference, "print('here')"), later.name))
    assert finished(cluster, "on-later") == "here"


def test_node_of_a_taken_name_is_refused(cluster: Cluster, later: Node) -> None:
    with pytest.raises(ValueError, match=f"has a node {later.name} already"):
        cluster.add_node(later.name)
    assert cluster.node(later.name).run("hostname").strip() == later.name


def test_pods_of_two_nodes_reach_each_other(cluster: Cluster, later: Node, images: dict[str, Image]) -> None:
    reference = images["sidecar"].reference
    apply(cluster, on_node(pod("far-server", reference, SERVE), later.name))
    address = ready(cluster, "far-server")
    apply(cluster, on_node(pod("near-client", reference, fetch(f"http://{address}:8080")), "n1"))
    assert finished(cluster, "near-client") == "200"


def test_host_network_pods_of_two_nodes_do_not_meet(cluster: Cluster, later: Node, images: dict[str, Image]) -> None:
    for node in ("n1", later.name):
        server = pod(f"host-{node}", images["sidecar"].reference, SERVE, hostNetwork=True)
        apply(cluster, on_node(server, node))
    addresses = {ready(cluster, f"host-{node}") for node in ("n1", later.name)}
    assert len(addresses) == 2


def test_host_paths_of_two_nodes_are_apart(cluster: Cluster, later: Node) -> None:
    for path in ("/run/kvtier", "/var/lib/kubelet", "/mnt/nvme0"):
        cluster.node("n1").run("touch", f"{path}/of-n1")
        with pytest.raises(CommandFailed, match="No such file"):
            later.run("ls", f"{path}/of-n1")
