"""Pods outlive their store, and the operator: running ones get misses, then hits; others start and end meanwhile.

tests/cluster/test_node_agent.py has the same for kvtier-node, and for a store that is not there at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kvtier_client.client import Client
from kvtier_client.protocol.messages import Tier

from dev.demo.kube import is_ready
from tests.cluster.blocks import Prompt
from tests.cluster.installation import (
    NAMESPACE,
    READY_S,
    SYSTEM,
    TIER_CLASS,
    Installation,
    engine_pod,
    restart_count,
    tier_class,
)

NODE = "n1"
RUNNING = "running"
OPERATOR = ("deployment", "kvtier-operator", "-n", SYSTEM)
IMPATIENT_S = 0.3


@pytest.fixture(scope="module")
def running(installation: Installation) -> Iterator[Path]:
    """The client socket of a pod that runs all the while, and is the same pod at the end."""
    with installation.running_pod(engine_pod(RUNNING, NODE, installation.sidecar_image)) as socket:
        yield socket
        pod = installation.kubectl.get("pod", "-n", NAMESPACE, RUNNING)
        assert is_ready(pod)
        assert restart_count(pod) == 0
        assert pod["metadata"]["uid"] in str(socket)


@contextmanager
def operator_away(installation: Installation) -> Iterator[None]:
    """No operator runs within the block."""
    kubectl = installation.kubectl
    select = ("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator")
    kubectl("scale", *OPERATOR, "--replicas=0")
    try:
        installation.wait("the operator to end", lambda: not kubectl.get(*select)["items"])
        yield
    finally:
        kubectl("scale", *OPERATOR, "--replicas=1")
        installation.wait("the operator", lambda: kubectl.get(*OPERATOR)["status"].get("readyReplicas") == 1)


def misses_until(installation: Installation, client: Client, prompt: Prompt, holds: Callable[[], bool]) -> int:
    """How often the client missed until `holds()`. It asks all the while, and what it gets is right."""
    misses, end, asked_s = 0, time.monotonic() + READY_S, float("-inf")
    while True:
        misses += prompt.restore(client, IMPATIENT_S).blocks < prompt.blocks
        if time.monotonic() - asked_s > 1.0:
            if holds():
                return misses
            asked_s = time.monotonic()
        assert time.monotonic() < end, installation.explain()


@pytest.mark.parametrize("capacity", ["640Mi", "512Mi"], ids=["larger", "smaller"])
def test_replaced_store_serves_the_blocks_of_its_predecessor(
    installation: Installation, running: Path, capacity: str
) -> None:
    prompt = Prompt(f"before-{capacity}")
    before = installation.store_pod(NODE)["metadata"]["uid"]
    changed = tier_class()
    changed["spec"]["tiers"]["dram"]["capacityPerNode"] = capacity

    def replaced() -> bool:
        found = installation.kubectl.get("pods", "-n", SYSTEM, "-l", f"kvtier.io/tier-class={TIER_CLASS}")["items"]
        return [is_ready(pod) and pod["metadata"]["uid"] != before for pod in found] == [True]

    with closing(Client(str(running))) as client:
        prompt.store(client)
        assert set(prompt.restore(client).tiers) == {Tier.DRAM}
        installation.kubectl.apply([changed])
        assert misses_until(installation, client, prompt, replaced) > 0
        installation.wait("hits again", lambda: prompt.is_whole(client))
        assert set(prompt.restore(client).tiers) == {Tier.DRAM}
    installation.wait(f"{capacity} to be reported", lambda: reported_capacity(installation) == capacity)


def reported_capacity(installation: Installation) -> str | None:
    """Of the class's ready nodes; None: no node is ready."""
    tiers = installation.kubectl.get("tierclass", TIER_CLASS)["status"].get("tiers")
    return tiers["dram"]["capacity"] if tiers else None


def test_pods_start_and_end_while_the_operator_is_away(installation: Installation, running: Path) -> None:
    prompt = Prompt("without-operator")
    with operator_away(installation), closing(Client(str(running))) as client:
        prompt.store(client)
        pod = engine_pod("unattended", NODE, installation.sidecar_image)
        with installation.running_pod(pod) as socket, closing(Client(str(socket))) as other:
            assert prompt.is_whole(other)
        installation.kill_store()
        installation.wait("hits of the restarted store", lambda: prompt.is_whole(client))
        store = installation.store_pod(NODE)["metadata"]
        installation.kubectl("delete", "pod", "-n", SYSTEM, store["name"], "--wait")
        with installation.running_pod(pod) as socket, closing(Client(str(socket))) as other:
            installation.wait("hits of the replaced store", lambda: prompt.is_whole(other) and prompt.is_whole(client))
    installation.wait_until_served()


def test_deselected_store_costs_its_pods_only_hits(installation: Installation, running: Path) -> None:
    prompt = Prompt("deselected")
    with closing(Client(str(running))) as client:
        prompt.store(client)
        installation.unselect(NODE)
        installation.wait("the node to be let go", lambda: not installation.kubectl.get("cachenode")["items"])
        assert prompt.restore(client, IMPATIENT_S).blocks == 0
        pod = engine_pod("meanwhile", NODE, installation.sidecar_image)
        with installation.running_pod(pod) as socket, closing(Client(str(socket))) as other:
            assert prompt.restore(other, IMPATIENT_S).blocks == 0
            assert other.misses
        with installation.running_pod(pod | {"metadata": pod["metadata"] | {"name": "patient"}}) as socket:
            installation.select(NODE)
            installation.wait_until_served()
            with closing(Client(str(socket))) as other:
                installation.wait("the new store to take blocks", lambda: prompt.is_taken(other))
                installation.wait("the running pod's hits", lambda: prompt.is_whole(client))
