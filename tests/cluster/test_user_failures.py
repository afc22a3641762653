"""What users get wrong, explained in one sentence where they look, and served by itself once it is mended.

A taint is in test_two_nodes, a volume that names no pool in test_node_agent; every other wording is held by
tests/unit/operator and tests/unit/node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kvtier_client.client import Client

from dev.cluster import Node
from dev.demo.kube import is_ready
from tests.cluster.blocks import Prompt
from tests.cluster.installation import NAMESPACE, TIER_CLASS, Installation, Manifest, cache_pool, engine_pod, tier_class
from tests.cluster.words import condition, events, wait_for_sentence

MISSING_DISK = "/mnt/nvme-of-tomorrow"
HOSTNAME = "kubernetes.io/hostname"


@contextmanager
def applied(installation: Installation, manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """The object is there within the block; yields what kubectl calls it. Afterwards it is gone."""
    metadata = manifest["metadata"]
    named: tuple[str, ...] = (manifest["kind"].lower(), metadata["name"])
    if "namespace" in metadata:
        named = (*named, "-n", metadata["namespace"])
    installation.kubectl.apply([manifest])
    try:
        yield named
    finally:
        installation.kubectl("delete", *named, "--wait=false")
        installation.wait(
            f"{' '.join(named)} to go",
            lambda: not installation.kubectl("get", *named, "--ignore-not-found", "-o", "name"),
        )


def class_of(node: str, name: str, **tiers: Any) -> Manifest:
    """A class for one node, with the sample's tiers but for those given."""
    manifest = tier_class()
    manifest["metadata"]["name"] = name
    manifest["spec"]["nodeSelector"] = {HOSTNAME: node}
    manifest["spec"]["tiers"] |= tiers
    return manifest


def pool(name: str, **spec: Any) -> Manifest:
    """The sample pool under another name, smaller, with what is given."""
    manifest = cache_pool()
    manifest["metadata"]["name"] = name
    manifest["spec"] |= {"quota": {"dram": "64Mi"}, **spec}
    return manifest


def pod_of(installation: Installation, pool_name: str, node: str = "n1") -> Manifest:
    """An engine's pod whose volume names that pool."""
    pod = engine_pod(f"of-{pool_name}", node, installation.sidecar_image)
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]["pool"] = pool_name
    return pod


def test_selector_that_no_node_matches_is_explained(installation: Installation) -> None:
    manifest = class_of("", "typo")
    manifest["spec"]["nodeSelector"] = {"kvtier.io/flash": "yes"}
    with applied(installation, manifest) as named:
        sentence = wait_for_sentence(installation, named, "Ready", "False", "NoNodesSelected", "kvtier.io/flash=yes")
        assert "the label kvtier.io/flash exists with true, not with yes; label the nodes, or change" in sentence
        assert installation.kubectl.get(*named)["status"]["nodes"]["desired"] == 0


def test_quota_above_the_capacity_is_explained_and_cut(installation: Installation) -> None:
    with applied(installation, pool("greedy", quota={"dram": "1Ti"})) as named:
        sentence = wait_for_sentence(installation, named, "Ready", "False", "QuotaExceedsCapacity", "1Ti", TIER_CLASS)
        assert sentence == (
            f"spec.quota.dram 1Ti is above the 512Mi that TierClass {TIER_CLASS} has on each node; lower the quota, or "
            "raise spec.tiers.dram.capacityPerNode of the class; until then 512Mi is granted"
        )
        assert sentence in events(installation, "CachePool", "greedy", "QuotaExceedsCapacity", NAMESPACE)
        with installation.running_pod(pod_of(installation, "greedy")) as socket, closing(Client(socket)) as client:
            installation.wait("what is granted to be served", lambda: Prompt("greedy").is_taken(client))
        installation.kubectl.apply([pool("greedy", quota={"dram": "128Mi"})])
        installation.wait("the mended pool to be ready", lambda: is_ready(installation.kubectl.get(*named)))


def test_pool_of_a_class_that_does_not_exist_is_explained(installation: Installation) -> None:
    with applied(installation, pool("early", tierClass="not-yet")) as named:
        sentence = wait_for_sentence(installation, named, "Ready", "False", "TierClassNotFound", "not-yet")
        assert sentence == (
            "TierClass not-yet does not exist; create it, or create the pool again with another spec.tierClass"
        )


def test_missing_nvme_path_is_explained_and_taken_once_it_is_there(
    installation: Installation, second_node: Node
) -> None:
    nvme = {"capacityPerNode": "256Mi", "devices": [{"name": "tomorrow", "path": MISSING_DISK}]}
    with applied(installation, class_of(second_node.name, "diskless", nvme=nvme)) as named:
        sentence = wait_for_sentence(installation, named, "Degraded", "True", "DevicePathMissing", MISSING_DISK)
        assert sentence == (
            f"{MISSING_DISK} does not exist on node {second_node.name}; create it or mount the disk there: "
            f"mount --mkdir /dev/DISK {MISSING_DISK}"
        )
        preflight = condition(installation.kubectl.get("cachenode", second_node.name), "Preflight")
        assert (preflight["status"], preflight["message"]) == ("False", sentence)
        second_node.run("mkdir", MISSING_DISK)
        installation.wait("the mended class to be ready", lambda: is_ready(installation.kubectl.get(*named)))
    assert second_node.run("ls", MISSING_DISK) == ""


def test_node_without_room_is_explained_with_the_shortfall(installation: Installation, second_node: Node) -> None:
    name = second_node.name
    with applied(installation, class_of(name, "huge", dram={"capacityPerNode": "2Ti"})) as named:
        sentence = wait_for_sentence(installation, named, "Degraded", "True", "NoRoom", name, "Ti are missing")
        assert sentence.startswith(f"node {name} has no room for the store: it requests 2Ti of memory, ")
        assert sentence.endswith("; lower spec.tiers.dram.capacityPerNode, or move other pods away")
        assert (
            f"1 of 1 node does not serve: {sentence}" == condition(installation.kubectl.get(*named), "Ready")["message"]
        )
        installation.kubectl.apply([class_of(name, "huge", dram={"capacityPerNode": "128Mi"})])
        installation.wait("the mended class to be ready", lambda: is_ready(installation.kubectl.get(*named)))


def test_second_class_of_a_node_is_told_who_has_it(installation: Installation) -> None:
    with applied(installation, class_of("n1", "late")) as named:
        sentence = wait_for_sentence(installation, named, "Ready", "False", "NodesContested", "n1")
        assert sentence == (
            f"TierClass {TIER_CLASS}, created earlier, has n1, which late selects too; narrow spec.nodeSelector of one "
            "of them"
        )
        assert condition(installation.kubectl.get(*named), "Degraded")["message"] == sentence
        assert installation.kubectl.get("cachenode", "n1")["spec"]["tierClass"] == TIER_CLASS
        assert is_ready(installation.kubectl.get("tierclass", TIER_CLASS))


def test_service_account_is_served_only_while_it_is_granted(installation: Installation) -> None:
    trainer, everyone = [{"name": "trainer"}], [{"name": "trainer"}, {"name": "default"}]
    prompt = Prompt("secret")
    with (
        applied(installation, pool("private", serviceAccounts=trainer)) as named,
        installation.running_pod(pod_of(installation, "private")) as socket,
        closing(Client(socket)) as client,
    ):
        installation.wait("the pool to be served", lambda: is_ready(installation.kubectl.get(*named)))
        installation.wait("the refusal", lambda: not prompt.is_taken(client) and refusals(client) > 0)
        assert prompt.restore(client).blocks == 0
        installation.kubectl.apply([pool("private", serviceAccounts=everyone)])
        installation.wait("the grant", lambda: prompt.is_taken(client))
        assert prompt.is_whole(client)
        before = refusals(client)
        installation.kubectl.apply([pool("private", serviceAccounts=trainer)])
        installation.wait(
            "the end of the grant", lambda: not prompt.restore(client).blocks and refusals(client) > before
        )


def refusals(client: Client) -> int:
    """How often the store has told the client that it has no grant."""
    return client.misses["refused:not_granted"]
