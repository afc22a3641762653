"""docs/install.md and the samples say what the code has."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kvtier_agent.config import StoreConfig, load_config
from kvtier_crds import names
from kvtier_crds.models import CachePoolSpec, TierClassSpec

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/install.md").read_text()
SAMPLES = REPOSITORY / "samples"


def config_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Every key of the configuration file that holds a value."""
    for field in msgspec.structs.fields(struct):
        kinds = [field.type, *typing.get_args(field.type)]
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)]
        many = any(typing.get_origin(k) is tuple for k in kinds)
        here = prefix + field.encode_name + ("[]" if many else "")
        if inner:
            yield from config_keys(inner[0], f"{here}.")
        else:
            yield here


def test_page_explains_exactly_the_keys_of_the_configuration() -> None:
    table = PAGE.partition("### The configuration file")[2]
    explained = set(re.findall(r"^\| `([^`]+)` \|", table, re.M))
    keys = set(config_keys(StoreConfig))
    parents = {key.split("[]")[0].split(".")[0] for key in keys}
    assert keys <= explained
    assert explained <= keys | parents


def test_table_names_the_defaults_of_the_configuration() -> None:
    table = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", PAGE, re.M))
    least = {"arena": {"path": "/a", "capacity": 1}, "pools": []}
    config = msgspec.convert(least, StoreConfig, dec_hook=lambda kind, value: kind(value))
    assert table["http.host"] == config.http.host
    assert table["http.port"] == str(config.http.port)
    assert table["movers"] == str(config.movers)
    assert table["arena.slotAlignment"] == str(config.arena.slot_alignment)


def test_standalone_sample_is_a_configuration() -> None:
    config = load_config(SAMPLES / "standalone/store.yaml")
    (pool,) = config.pools
    assert config.nvme
    assert pool.dram_quota <= config.arena.capacity
    assert pool.nvme_quota
    assert pool.nvme_quota <= config.nvme.capacity
    assert f"KVTIER_SOCKET={pool.socket}" in PAGE
    assert config.arena.path in PAGE
    assert config.nvme.devices[0].path in PAGE


@pytest.mark.parametrize(
    "path", sorted({link for link in re.findall(r"\]\(\.?\.?/?([^)#]+)\)", PAGE) if "://" not in link})
)
def test_link_leads_somewhere(path: str) -> None:
    assert (REPOSITORY / path).exists() or (REPOSITORY / "docs" / path).exists()


def sample(name: str) -> Any:
    return yaml.safe_load((SAMPLES / name).read_text())


def test_samples_of_class_and_pool_fit_each_other() -> None:
    tier_class, pool = sample("tierclass.yaml"), sample("cachepool.yaml")
    TierClassSpec.model_validate(tier_class["spec"])
    assert CachePoolSpec.model_validate(pool["spec"]).tier_class == tier_class["metadata"]["name"]


def test_sample_engine_uses_the_agreed_names() -> None:
    pod, pool = sample("engine.yaml"), sample("cachepool.yaml")
    (sidecar,) = pod["spec"]["initContainers"]
    (engine,) = pod["spec"]["containers"]
    (volume,) = pod["spec"]["volumes"]
    assert volume["csi"] == {"driver": names.CSI_DRIVER, "volumeAttributes": {"pool": pool["metadata"]["name"]}}
    assert pod["metadata"]["namespace"] == pool["metadata"]["namespace"]
    assert sidecar["securityContext"]["runAsUser"] == names.SIDECAR_UID
    assert engine["securityContext"]["runAsUser"] not in (names.SIDECAR_UID, names.STORE_UID)
    assert sidecar["volumeMounts"] == [{"name": "kvtier", "mountPath": names.POD_SOCKET_DIR}]
    assert engine["volumeMounts"] == [{"name": "kvtier", "mountPath": names.POD_SOCKET_DIR, "readOnly": True}]
    assert sidecar["restartPolicy"] == "Always"
    assert "readinessProbe" not in sidecar
    for container in (sidecar, engine):
        assert container["resources"]["requests"] == container["resources"]["limits"]
