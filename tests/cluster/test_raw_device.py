"""A raw block device: refused while it holds something else, then the store's, across stores, and blank in the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from dev.cluster import Node
from dev.demo.kube import is_ready
from tests.cluster.blocks import Prompt
from tests.cluster.installation import NAMESPACE, SYSTEM, Installation, cache_pool, engine_pod, tier_class
from tests.cluster.words import condition, wait_for_sentence

NAME: Final = "raw"
LABEL: Final = "kvtier.io/raw"
PROMPTS: Final = [Prompt(f"raw-{number}", blocks=128) for number in range(6)]
"""96 MiB, half more than the pool has of DRAM."""
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Disk:
    """A loop device with a name as udev would give it. The node sees this machine's /dev."""

    node: str
    name: str

    def read(self, size: int) -> bytes:
        with Path(self.node).open("rb", buffering=0) as disk:
            return disk.read(size)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(512 * MIB)
        file.write(b"somebody's file system")
    node = run("losetup", "--find", "--show", "--direct-io=on", str(image))
    link = Path(f"/dev/disk/by-id/kvtier-test-{os.getpid()}")
    made = [folder for folder in (link.parent.parent, link.parent) if not folder.exists()]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../{Path(node).name}")
    try:
        yield Disk(node, str(link))
    finally:
        link.unlink()
        for folder in reversed(made):
            folder.rmdir()
        run("losetup", "--detach", node)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def raw_class(disk: Disk) -> dict[str, Any]:
    wanted = tier_class()
    wanted["metadata"]["name"] = NAME
    wanted["spec"]["nodeSelector"] = {LABEL: "true"}
    nvme = {"capacityPerNode": "512Mi", "devices": [{"name": "disk", "device": disk.name}]}
    wanted["spec"]["tiers"] = {"dram": {"capacityPerNode": "128Mi"}, "nvme": nvme}
    return wanted


def raw_pool() -> dict[str, Any]:
    wanted = cache_pool()
    wanted["metadata"]["name"] = NAME
    wanted["spec"] = {"tierClass": NAME, "quota": {"dram": "64Mi", "nvme": "512Mi"}, "restore": "always"}
    return wanted


def test_raw_device_serves_from_refusal_to_release(installation: Installation, second_node: Node, disk: Disk) -> None:
    kubectl, node = installation.kubectl, second_node.name
    pool = ("cachepool", "-n", NAMESPACE, NAME)
    pod = engine_pod("reads-raw", node, installation.sidecar_image)
    pod["spec"]["volumes"][0]["csi"]["volumeAttributes"]["pool"] = NAME
    kubectl("label", "node", node, f"{LABEL}=true")
    kubectl.apply([raw_class(disk), raw_pool()])
    try:
        sentence = wait_for_sentence(
            installation, ("cachenode", node), "Preflight", "False", "DeviceNotBlank", disk.name, disk.node
        )
        installation.wait("the pool to be served from DRAM alone", lambda: is_ready(kubectl.get(*pool)))
        degraded = condition(kubectl.get("tierclass", NAME), "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "DeviceNotBlank")
        assert disk.read(8) == b"somebody"
        command = sentence.partition("blank it: ")[2].partition(", or")[0]
        second_node.run(*command.split())
        installation.wait(
            "the device to be used",
            lambda: (
                device_state(kubectl.get("cachenode", node)) == "Ready"
                and condition(kubectl.get("cachenode", node), "Preflight")["status"] == "True"
            ),
        )
        with installation.running_pod(pod) as socket, closing(Client(socket)) as client:
            for prompt in PROMPTS:
                prompt.store(client, Reach.FLUSHED)
            assert all(prompt.is_whole(client) for prompt in PROMPTS)
            before = installation.store_pod(node, NAME)["metadata"]
            kubectl("delete", "pod", "-n", SYSTEM, before["name"])
            installation.wait("the successor", lambda: succeeded(installation, node, before["uid"]))
            installation.wait("its device", lambda: device_state(kubectl.get("cachenode", node)) == "Ready")
            assert all(prompt.is_whole(client) for prompt in PROMPTS)
        kubectl("delete", *pool)
    finally:
        kubectl("delete", "tierclass", NAME, "--wait=false", "--ignore-not-found")
        installation.wait("the node to be released", lambda: node not in names(kubectl.get("cachenode")))
        kubectl("label", "node", node, f"{LABEL}-")
    assert not any(disk.read(MIB))


def succeeded(installation: Installation, node: str, predecessor: str) -> bool:
    try:
        pod = installation.store_pod(node, NAME)
    except LookupError:
        return False
    return pod["metadata"]["uid"] != predecessor and is_ready(pod)


def device_state(cache_node: dict[str, Any]) -> str:
    devices = cache_node.get("status", {}).get("devices", [])
    return str(devices[0]["state"]) if devices else ""


def names(found: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]
