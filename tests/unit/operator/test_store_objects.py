"""A class's ConfigMap and DaemonSet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kvtier_agent.config import load_config
from kvtier_crds.models import Tiers
from kvtier_operator.desired.resources import MI, store_memory_bytes, store_resources
from kvtier_operator.desired.store import spec_hash, store_objects
from kvtier_operator.settings import Settings, StoreSettings

from tests.unit.operator.build import DRAM_ONLY, SETTINGS, WITH_NVME, tier_class

Object = dict[str, Any]
RAW = {
    "name": "disk1",
    "device": "/dev/disk/by-id/nvme-eui.0025384b21404b01",
    "initialize": "Always",
}
WITH_RAW = DRAM_ONLY | {
    "nvme": {"capacityPerNode": "100Gi", "devices": [RAW, {"name": "disk0", "path": "/mnt/nvme0"}]},
}
HUGE = {"dram": {"capacityPerNode": "8Gi", "hugePages": "1Gi"}}


def objects(settings: Settings = SETTINGS, **given: Any) -> tuple[Object, Object]:
    return store_objects(tier_class(**given), settings)


def container(daemon_set: Object) -> Object:
    only: Object
    (only,) = daemon_set["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("tiers", [DRAM_ONLY, WITH_NVME, WITH_RAW, HUGE], ids=["dram", "nvme", "raw", "huge pages"])
def test_configuration_is_one_that_the_store_reads(tmp_path: Path, tiers: Object) -> None:
    config_map, daemon_set = objects(tiers=tiers)
    path = tmp_path / "store.yaml"
    path.write_text(config_map["data"]["store.yaml"])

    config = load_config(path)

    mounted = {mount["mountPath"] for mount in container(daemon_set)["volumeMounts"]}
    assert config.arena.capacity == 8 << 30
    assert config.tier_class == "flash"
    assert config.pools == ()
    assert config.node_socket == "/run/kvtier/node/node.sock"
    assert config.http.port == 9410
    paths = [device.path for device in config.nvme.devices if "/dev/" not in device.path] if config.nvme else []
    assert mounted == {config.arena.path, config.arena.client_path, "/run/kvtier/node", "/etc/kvtier", *paths}


def test_slots_are_aligned_to_huge_pages() -> None:
    config = yaml.safe_load(objects(tiers=HUGE)[0]["data"]["store.yaml"])

    assert config["arena"]["slotAlignment"] == 1 << 30


def test_raw_device_is_named_to_the_store_and_not_mounted() -> None:
    config_map, daemon_set = objects(tiers=WITH_RAW)
    config = yaml.safe_load(config_map["data"]["store.yaml"])
    volumes = {volume["name"]: volume for volume in daemon_set["spec"]["template"]["spec"]["volumes"]}

    assert config["nvme"]["devices"] == [
        {"name": "disk1", "path": "/dev/disk/by-id/nvme-eui.0025384b21404b01", "initialize": "always"},
        {"name": "disk0", "path": "/media/disk0"},
    ]
    assert [name for name in volumes if name.startswith("media")] == ["media-1"]


def test_store_runs_with_no_privilege() -> None:
    _, daemon_set = objects()
    pod = daemon_set["spec"]["template"]["spec"]

    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 64100,
        "runAsGroup": 64100,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(daemon_set)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in pod


def test_arena_is_mounted_for_the_store_and_read_only_for_clients() -> None:
    _, daemon_set = objects(tiers=WITH_NVME)
    volumes = {volume["name"]: volume for volume in daemon_set["spec"]["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container(daemon_set)["volumeMounts"]}

    assert volumes["arena"]["hostPath"] == {"path": "/run/kvtier/arena/store", "type": "Directory"}
    assert volumes["media-0"]["hostPath"] == {"path": "/mnt/nvme0/kvtier", "type": "Directory"}
    assert mounts["/arena"] == {"name": "arena", "mountPath": "/arena", "mountPropagation": "HostToContainer"}
    assert mounts["/arena-ro"]["readOnly"] is True
    assert mounts["/arena-ro"]["name"] == "arena"
    assert mounts["/media/disk0"]["name"] == "media-0"


def test_one_store_at_a_time_is_updated_without_surge() -> None:
    _, daemon_set = objects()

    assert daemon_set["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


def test_nothing_is_owned_by_the_class() -> None:
    for body in objects():
        assert "ownerReferences" not in body["metadata"]


def test_settings_reach_the_pod() -> None:
    store = StoreSettings("reg/store:2", "store-account", "Always", ("key",), "kvtier-store")
    _, daemon_set = objects(settings=Settings(namespace="kv", store=store))
    pod = daemon_set["spec"]["template"]["spec"]

    assert daemon_set["metadata"]["namespace"] == "kv"
    assert (container(daemon_set)["image"], container(daemon_set)["imagePullPolicy"]) == ("reg/store:2", "Always")
    assert pod["serviceAccountName"] == "store-account"
    assert pod["imagePullSecrets"] == [{"name": "key"}]
    assert pod["priorityClassName"] == "kvtier-store"


def test_selector_and_tolerations_reach_the_pod() -> None:
    _, daemon_set = objects(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}])
    pod = daemon_set["spec"]["template"]["spec"]

    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "gpu": "yes"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"tiers": {"dram": {"capacityPerNode": "9Gi"}}}, id="capacity"),
        pytest.param({"tiers": WITH_NVME}, id="tier"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, id="toleration"),
        pytest.param({"selector": {"gpu": "no"}}, id="selector"),
    ],
)
def test_change_of_the_class_changes_the_pods_hash(change: Object) -> None:
    assert spec_hash(objects(**change)[1]) != spec_hash(objects()[1])


def test_same_class_gives_the_same_objects() -> None:
    assert objects(tiers=WITH_NVME) == objects(tiers=WITH_NVME)


def test_memory_covers_arena_index_page_tables_processes_and_buffers() -> None:
    tiers = Tiers.model_validate(
        {"dram": {"capacityPerNode": "8Gi"}, "nvme": WITH_NVME["nvme"] | {"capacityPerNode": "8Gi"}}
    )

    arena, page_tables = 8192, 5 * 16
    index = 64
    processes, buffers, slack = 5 * 96, 2 * 32, 64
    assert store_memory_bytes(tiers) == (arena + page_tables + index + processes + buffers + slack) * MI


@pytest.mark.parametrize("size", ["128Mi", "1Gi", "100Gi", "2Ti"])
def test_memory_request_leaves_room_beside_the_arena(size: str) -> None:
    tiers = Tiers.model_validate({"dram": {"capacityPerNode": size}})
    resources = store_resources(tiers)

    assert store_memory_bytes(tiers) > 512 * MI
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]


def test_huge_pages_are_requested_in_place_of_memory() -> None:
    tiers = Tiers.model_validate(HUGE)
    resources = store_resources(tiers)

    assert resources["limits"]["hugepages-1Gi"] == resources["requests"]["hugepages-1Gi"] == "8Gi"
    assert store_memory_bytes(tiers) < 1024 * MI
