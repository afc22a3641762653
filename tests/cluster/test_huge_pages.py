"""Huge pages: a node without them says so and gets no store; one that has them keeps blocks there, and returns them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from kvtier_client.client import Client

from dev.cluster import Node
from dev.demo.kube import is_ready
from tests.cluster.blocks import Prompt
from tests.cluster.installation import NAMESPACE, Installation, cache_pool, engine_pod, tier_class
from tests.cluster.words import wait_for_sentence

NAME: Final = "huge"
LABEL: Final = "kvtier.io/huge"
PAGES: Final = 64
"""Of 2Mi, which make the 128Mi of the class."""
RESERVED: Final = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
FREE: Final = RESERVED.with_name("free_hugepages")
LATER: Final = "huge-pages"


@pytest.fixture(scope="module")
def without(installation: Installation) -> Iterator[str]:
    """A class that asks for huge pages, on a node whose kubelet found none."""
    if RESERVED.read_text().strip() != "0":
        pytest.skip("the machine has huge pages already, so no node lacks them")
    installation.cluster.add_node("no-huge-pages")
    installation.kubectl("label", "node", "no-huge-pages", f"{LABEL}=true")
    wanted = tier_class()
    wanted["metadata"]["name"] = NAME
    wanted["spec"]["nodeSelector"] = {LABEL: "true"}
    wanted["spec"]["tiers"] = {"dram": {"capacityPerNode": "128Mi", "hugePages": "2Mi"}}
    installation.kubectl.apply([wanted])
    yield "no-huge-pages"
    installation.kubectl("delete", "tierclass", NAME, "--wait=false", "--ignore-not-found")
    installation.wait("the class to go", lambda: not class_exists(installation))
    remove_node(installation, "no-huge-pages")


@pytest.fixture(scope="module")
def with_pages(installation: Installation, without: str) -> Iterator[Node]:
    """A node of the class whose kubelet found the pages; the other one has left the class."""
    RESERVED.write_text(str(PAGES))
    if int(RESERVED.read_text()) < PAGES:
        RESERVED.write_text("0")
        pytest.skip("the machine's memory is too fragmented for huge pages")
    try:
        node = installation.cluster.add_node(LATER)
        installation.kubectl("label", "node", without, f"{LABEL}-")
        installation.kubectl("label", "node", LATER, f"{LABEL}=true")
        yield node
        remove_node(installation, LATER)
    finally:
        RESERVED.write_text("0")


def class_exists(installation: Installation) -> bool:
    return any(found["metadata"]["name"] == NAME for found in installation.kubectl.get("tierclass")["items"])


def remove_node(installation: Installation, name: str) -> None:
    installation.cluster.remove_node(name)
    installation.kubectl("delete", "node", name)


def pool() -> dict[str, Any]:
    wanted = cache_pool()
    wanted["metadata"]["name"] = NAME
    wanted["spec"] = {"tierClass": NAME, "quota": {"dram": "128Mi"}}
    return wanted


def test_node_without_huge_pages_names_the_command_and_gets_no_arena(installation: Installation, without: str) -> None:
    sentence = wait_for_sentence(
        installation, ("cachenode", without), "Preflight", "False", "HugePagesMissing", "0 of the 64 huge pages of 2Mi"
    )
    assert f"sysctl -w vm.nr_hugepages={PAGES}" in sentence
    wait_for_sentence(installation, ("tierclass", NAME), "Ready", "False", "NodesNotReady", without)
    assert "/run/kvtier/arena" not in installation.cluster.node(without).run("cat", "/proc/self/mounts")


def test_blocks_lie_in_huge_pages_outlive_the_store_and_leave_with_the_class(
    installation: Installation, with_pages: Node
) -> None:
    kubectl = installation.kubectl
    kubectl.apply([pool()])
    installation.wait("the pool to be served", lambda: is_ready(kubectl.get("cachepool", "-n", NAMESPACE, NAME)))
    assert " /run/kvtier/arena hugetlbfs " in with_pages.run("cat", "/proc/self/mounts")
    prompt = Prompt("in-huge-pages", blocks=64)
    pod = engine_pod("reads-huge-pages", LATER, installation.sidecar_image)
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]["pool"] = NAME
    with installation.running_pod(pod) as socket, closing(Client(socket)) as client:
        prompt.store(client)
        assert prompt.is_whole(client)
        taken = steady_pages(installation)
        assert taken >= 4, "8 MiB of blocks take four pages at least"
        installation.kill_store(LATER, NAME)
        assert prompt.is_whole(client)
        assert PAGES - int(FREE.read_text()) <= taken + 2
    kubectl("delete", "cachepool", "-n", NAMESPACE, NAME)
    kubectl("label", "node", LATER, f"{LABEL}-")
    installation.wait("the node to be released", lambda: LATER not in names(kubectl.get("cachenode")))
    assert int(FREE.read_text()) == PAGES


def steady_pages(installation: Installation) -> int:
    """Huge pages in use, once no chunk is being made: the store makes the next one ahead of puts."""
    seen = [-1]

    def is_steady() -> bool:
        seen.append(PAGES - int(FREE.read_text()))
        time.sleep(1.0)
        return seen[-1] == seen[-2]

    installation.wait("no further huge page to be taken", is_steady)
    return seen[-1]


def names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]
