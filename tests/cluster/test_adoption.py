"""A successor takes over what its store had in DRAM, whatever ended the store, and the node's memory does not grow.

The pool has no NVMe, so that every hit comes from the memory that was taken over. A client maps it all the while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pytest
from kvtier_client.client import Client

from dev.cluster import Node
from dev.demo.kube import is_ready
from tests.cluster.blocks import PAGE_BYTES, Prompt
from tests.cluster.footprint import footprint
from tests.cluster.installation import NAMESPACE, SYSTEM, TIER_CLASS, Installation, cache_pool, engine_pod, tier_class

NAME: Final = "kept"
NODE: Final = "n1"
PROMPTS: Final = [Prompt(f"kept-{number}", blocks=128) for number in range(6)]
STORED_BYTES: Final = sum(prompt.blocks for prompt in PROMPTS) * PAGE_BYTES
SLACK_BYTES: Final = 48 << 20
"""Processes differ by so much from one start to the next; it is half of what is stored."""


@dataclass(frozen=True)
class Kept:
    """A pool that is full of prompts, and a client that maps it."""

    installation: Installation
    client: Client
    uid: str

    @property
    def node(self) -> Node:
        return self.installation.cluster.node(NODE)

    def are_whole(self) -> list[bool]:
        """Of each prompt, whether all of it is there, bit for bit."""
        return [prompt.is_whole(self.client) for prompt in PROMPTS]

    def wait_for_successor(self, predecessor: str) -> None:
        """Return once another store's pod is ready, with the present specification."""

        def is_there() -> bool:
            try:
                pod = self.installation.store_pod(NODE)
            except LookupError:  # between the two
                return False
            return pod["metadata"]["uid"] != predecessor and is_ready(pod)

        self.installation.wait("the successor", is_there)
        self.installation.wait("the class", lambda: is_ready(self.installation.kubectl.get("tierclass", TIER_CLASS)))

    def assert_no_store_ran_out_of_memory(self) -> None:
        for status in self.installation.store_pod(NODE)["status"]["containerStatuses"]:
            assert status.get("lastState", {}).get("terminated", {}).get("reason") != "OOMKilled"


@pytest.fixture
def kept(installation: Installation) -> Iterator[Kept]:
    kubectl = installation.kubectl
    manifest = cache_pool()
    manifest["metadata"]["name"] = NAME
    manifest["spec"]["quota"] = {"dram": "256Mi"}
    pod = engine_pod("keeps-mapping", NODE, installation.sidecar_image)
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]["pool"] = NAME
    kubectl.apply([manifest])
    named = ("cachepool", NAME, "-n", NAMESPACE)
    try:
        installation.wait("the pool to be served", lambda: is_ready(kubectl.get(*named)))
        with installation.running_pod(pod) as socket, closing(Client(socket)) as client:
            for prompt in PROMPTS:
                prompt.store(client)
            found = Kept(installation, client, kubectl.get(*named)["metadata"]["uid"])
            assert all(found.are_whole())
            yield found
    finally:
        kubectl("delete", *named, "--ignore-not-found")


def test_killed_stores_successor_serves_all_within_its_limits(kept: Kept) -> None:
    before = footprint(kept.node)
    for _ in range(2):
        kept.installation.kill_store(NODE)
    kept.assert_no_store_ran_out_of_memory()
    assert all(kept.are_whole())
    after = footprint(kept.node)
    assert after.arena <= before.arena + SLACK_BYTES
    assert after.pods <= before.pods + SLACK_BYTES


def test_replaced_pods_successor_serves_all_within_its_limits(kept: Kept) -> None:
    before = footprint(kept.node)
    pod = kept.installation.store_pod(NODE)["metadata"]
    kept.installation.kubectl("delete", "pod", "-n", SYSTEM, pod["name"], "--force", "--grace-period=0")
    kept.wait_for_successor(pod["uid"])
    kept.assert_no_store_ran_out_of_memory()
    assert all(kept.are_whole())
    after = footprint(kept.node)
    assert after.arena <= before.arena + SLACK_BYTES
    assert after.pods <= before.pods + SLACK_BYTES


def test_rollout_of_the_class_keeps_what_is_in_dram(kept: Kept) -> None:
    before = footprint(kept.node)
    try:
        resize(kept, "576Mi")
        assert all(kept.are_whole())
    finally:
        resize(kept, "512Mi")
    assert all(kept.are_whole())
    kept.assert_no_store_ran_out_of_memory()
    after = footprint(kept.node)
    assert after.arena <= before.arena + SLACK_BYTES
    assert after.pods <= before.pods + SLACK_BYTES


def test_memory_of_a_deleted_pool_is_given_back_while_a_client_maps_it(kept: Kept) -> None:
    before = footprint(kept.node)
    kept.installation.kubectl("delete", "cachepool", NAME, "-n", NAMESPACE)
    kept.installation.wait(
        "the pool's arena to go", lambda: not kept.node.run("find", "/run/kvtier/arena", "-name", f"*{kept.uid}*")
    )
    after = footprint(kept.node)
    assert before.arena - after.arena >= STORED_BYTES
    assert before.pods - after.pods >= STORED_BYTES - SLACK_BYTES


def resize(kept: Kept, capacity: str) -> None:
    """Change the class's DRAM, which every store of it is started anew for; return once that is done."""
    pod = kept.installation.store_pod(NODE)["metadata"]["uid"]
    changed = tier_class()
    changed["spec"]["tiers"]["dram"]["capacityPerNode"] = capacity
    kept.installation.kubectl.apply([changed])
    kept.wait_for_successor(pod)
