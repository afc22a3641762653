"""Two nodes of one class: added later, served apart, let go without a trace, and a taint that is explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kvtier_client.client import Client

from dev.cluster import Node
from dev.demo.kube import is_ready
from tests.cluster.blocks import DEADLINE_S, LAYOUT, Prompt
from tests.cluster.installation import NAMESPACE, POOL, SYSTEM, TIER_CLASS, Installation, engine_pod, kept_on
from tests.cluster.words import condition, events, wait_for_sentence

TABLE_WIDTH = 120
TAINT = "kvtier.io/test=reserved:NoSchedule"
CLASS = ("tierclass", TIER_CLASS)


@pytest.fixture(scope="module")
def both(installation: Installation, second_node: Node) -> Iterator[Node]:
    """The second node, in the class."""
    installation.select(second_node.name)
    wait_for_nodes(installation, "2/2")
    yield second_node
    installation.unselect(second_node.name)
    wait_for_nodes(installation, "1/1")
    installation.wait("its CacheNode to go", lambda: second_node.name not in cache_nodes(installation))


def wait_for_nodes(installation: Installation, summary: str) -> None:
    def holds() -> bool:
        return bool(installation.kubectl.get(*CLASS)["status"]["nodes"]["summary"] == summary)

    installation.wait(f"{summary} nodes of the class to be ready", holds)


def cache_nodes(installation: Installation) -> list[str]:
    return [entry["metadata"]["name"] for entry in installation.kubectl.get("cachenode")["items"]]


def pods_on(installation: Installation, node: Node, component: str) -> list[dict[str, object]]:
    select = ("-l", f"app.kubernetes.io/component={component}", f"--field-selector=spec.nodeName={node.name}")
    found: list[dict[str, object]] = installation.kubectl.get("pods", "-n", SYSTEM, *select)["items"]
    return found


def test_node_added_later_gets_all_that_serves(installation: Installation, both: Node) -> None:
    assert [is_ready(pod) for pod in pods_on(installation, both, "node")] == [True]
    assert [is_ready(pod) for pod in pods_on(installation, both, "store")] == [True]
    cache_node = installation.kubectl.get("cachenode", both.name)
    assert cache_node["spec"]["tierClass"] == TIER_CLASS
    assert [pool["name"] for pool in cache_node["spec"]["pools"]] == [POOL]
    assert condition(cache_node, "Preflight")["status"] == "True"
    tier_class = installation.kubectl.get(*CLASS)
    assert tier_class["status"]["nodes"] == {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"}
    assert tier_class["status"]["tiers"]["dram"]["capacity"] == "1Gi"
    assert condition(tier_class, "Ready")["message"] == "every node serves (2 of 2)"
    assert f"added: {both.name}" in events(installation, "TierClass", TIER_CLASS, "NodeAdded")
    installation.wait(
        "the pool to be served by both",
        lambda: installation.kubectl.get("cachepool", "-n", NAMESPACE, POOL)["status"]["nodes"] == 2,
    )


def test_each_node_has_a_cache_of_its_own(installation: Installation, both: Node) -> None:
    prompt, other = Prompt("of-n1"), Prompt(f"of-{both.name}")
    near_pod = engine_pod("near", "n1", installation.sidecar_image)
    far_pod = engine_pod("far", both.name, installation.sidecar_image)
    with (
        installation.running_pod(near_pod) as near_socket,
        installation.running_pod(far_pod) as far_socket,
        closing(Client(str(near_socket))) as near,
        closing(Client(str(far_socket))) as far,
    ):
        prompt.store(near)
        other.store(far)
        assert prompt.is_whole(near)
        assert other.is_whole(far)
        assert (prompt.restore(far).blocks, other.restore(near).blocks) == (0, 0)
        assert not near.misses
        assert not far.misses


@pytest.mark.usefixtures("both")
def test_tables_of_a_live_cluster_fit_the_width(installation: Installation) -> None:
    prompt = Prompt("for-the-table")
    with (
        installation.running_pod(engine_pod("table", "n1", installation.sidecar_image)) as socket,
        closing(Client(str(socket))) as client,
    ):
        prompt.store(client)
        assert client.lookup(LAYOUT, prompt.hashes, deadline_s=DEADLINE_S).whole_blocks == prompt.blocks
        installation.wait(
            "hits of the pool",
            lambda: installation.kubectl.get("cachepool", "-n", NAMESPACE, POOL)["status"]["hitRatio"] != "-",
        )
    lines = installation.kubectl("get", "tierclass,cachepool,cachenode", "-n", NAMESPACE).splitlines()
    rows = {cells[0]: cells[1:] for cells in map(str.split, lines) if cells}
    assert max(map(len, lines)) <= TABLE_WIDTH, lines
    assert rows[f"tierclass.kvtier.io/{TIER_CLASS}"][0] == "2/2"
    for name in (f"tierclass.kvtier.io/{TIER_CLASS}", f"cachepool.kvtier.io/{POOL}", "cachenode.kvtier.io/n1"):
        *_, dram, dram_used, nvme, nvme_used, hits, ready, _ = rows[name]
        assert (dram.endswith("i"), nvme.endswith("i"), ready) == (True, True, "True"), rows[name]
        assert dram_used != "0"
        assert nvme_used != "0"
        assert hits.endswith("%"), rows[name]


def test_node_without_the_label_is_emptied_and_released(installation: Installation, both: Node) -> None:
    assert len(kept_on(both)) == 3
    pod = engine_pod("left-behind", both.name, installation.sidecar_image)
    with installation.running_pod(pod) as socket, closing(Client(str(socket))) as client:
        Prompt("left-behind").store(client)
        installation.unselect(both.name)
        installation.wait("the node's CacheNode to go", lambda: both.name not in cache_nodes(installation))
        assert kept_on(both) == []
        assert not pods_on(installation, both, "store")
        assert f"begins to drain: {both.name}" in events(installation, "TierClass", TIER_CLASS, "NodeDraining")
        wait_for_nodes(installation, "1/1")
        assert Prompt("left-behind").restore(client, deadline_s=0.5).blocks == 0
        assert is_ready(installation.kubectl.get("pod", "-n", NAMESPACE, "left-behind"))
        installation.select(both.name)
        wait_for_nodes(installation, "2/2")
        installation.wait("the pod's client to be served again", lambda: Prompt("anew").is_taken(client))
        assert Prompt("anew").is_whole(client)


def test_tainted_node_is_explained_and_taken_once_mended(installation: Installation, both: Node) -> None:
    installation.unselect(both.name)
    installation.wait("the node's CacheNode to go", lambda: both.name not in cache_nodes(installation))
    installation.kubectl("taint", "node", both.name, TAINT)
    try:
        installation.select(both.name)
        sentence = wait_for_sentence(installation, CLASS, "Degraded", "True", "NodeTainted", both.name, TAINT)
        assert sentence == (
            f"node {both.name} has the taint {TAINT}, which spec.tolerations does not tolerate; add the toleration, "
            "take the taint off, or leave the node out of spec.nodeSelector"
        )
        assert sentence in condition(installation.kubectl.get(*CLASS), "Ready")["message"]
        assert sentence in events(installation, "TierClass", TIER_CLASS, "NodeTainted")
    finally:
        installation.kubectl("taint", "node", both.name, f"{TAINT}-")
    wait_for_nodes(installation, "2/2")
    assert condition(installation.kubectl.get(*CLASS), "Degraded")["status"] == "False"


def test_node_that_is_lost_is_let_go_with_its_node_object(installation: Installation) -> None:
    cluster = installation.cluster
    lost = cluster.add_node("lost")
    try:
        installation.select(lost.name)
        installation.wait("a store on the node", lambda: is_ready(installation.kubectl.get("cachenode", lost.name)))
        nodes = installation.kubectl.get(*CLASS)["status"]["nodes"]["desired"]
        cluster.remove_node(lost.name)
    finally:
        installation.kubectl("delete", "node", lost.name)
    installation.wait("the node's CacheNode to go", lambda: lost.name not in cache_nodes(installation))
    wait_for_nodes(installation, f"{nodes - 1}/{nodes - 1}")
    sentence = condition(installation.kubectl.get(*CLASS), "Ready")["message"]
    assert sentence == f"every node serves ({nodes - 1} of {nodes - 1})"
