"""Every rule and default of the resources before the real API server.

One manifest breaks each rule, that rule alone, and the whole message is asserted. The last tests compare the
tables with the generated CRDs, so that a rule or default without a case fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from kvtier_crds.kinds import KINDS

from dev.cluster.cluster import Cluster
from tests.controlplane.crds_api import Api, connect, edited, resource, schema_nodes, schema_rules


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Api:
    return connect(control_plane.programs["kubectl"], control_plane.kubeconfig)


BASES: dict[str, dict[str, Any]] = {
    "TierClass": {
        "nodeSelector": {"kvtier.io/flash": "true"},
        "tiers": {
            "dram": {"capacityPerNode": "8Gi"},
            "nvme": {"capacityPerNode": "1Ti", "devices": [{"name": "nvme0", "path": "/mnt/nvme0"}]},
        },
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "CachePool": {
        "tierClass": "flash",
        "quota": {"dram": "4Gi", "nvme": "100Gi"},
        "serviceAccounts": [{"namespace": "other", "name": "engine"}, {"name": "*"}],
    },
    "CacheNode": {
        "tierClass": "flash",
        "tiers": {"dram": {"capacityPerNode": "8Gi"}},
        "pools": [
            {
                "uid": "5b0f",
                "namespace": "default",
                "name": "chat",
                "quota": {"dram": "1Gi"},
                "serviceAccounts": [{"namespace": "default", "name": "*"}],
            }
        ],
    },
}

SIZE = "must be a size in bytes such as 8Gi, 500M or 1.5Ti"
LABEL = "must consist of lower-case letters, digits and `-`, and begin and end with a letter or digit"
ACCOUNT = "must be the name of a service account, or `*` for every one of the namespace"
TWO_DEVICES_ONE_PATH = [{"name": "a", "path": "/mnt/a"}, {"name": "b", "path": "/mnt/a"}]
RAW = "/dev/disk/by-id/nvme-eui.0025384b21404b01"
TWO_ENTRIES_ONE_DEVICE = [{"name": "a", "device": RAW}, {"name": "b", "device": RAW}]


@dataclass(frozen=True)
class Case:
    """A manifest that breaks one rule."""

    kind: str
    rule_at: str
    """Schema path of the node that carries the rule."""
    blames: str
    """The field that the API server names."""
    message: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """To the kind's base spec."""
    name: str = "test"
    before: Mapping[str, Any] | None = None
    """For a rule on changes: how the stored object differs from the base."""

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.blames}-{self.message[:30]}"


DRAM, NVME, TOLERATION = "spec.tiers.dram", "spec.tiers.nvme", "spec.tolerations[]"
BROKEN = [
    Case(
        "TierClass",
        "",
        "<nil>",
        "metadata.name must have at most 63 characters and no `.`: it becomes part of the names of stores",
        name="a.b",
    ),
    Case(
        "TierClass",
        "spec.nodeSelector",
        "spec.nodeSelector",
        "keys must be label names such as kvtier.io/flash: letters, digits and ._-, with a DNS prefix or none",
        {"nodeSelector": {"Not a key": "x"}},
    ),
    Case(
        "TierClass",
        "spec.nodeSelector[*]",
        "spec.nodeSelector[zone]",
        "must be a label value: letters, digits and ._-, beginning and ending with a letter or digit",
        {"nodeSelector": {"zone": "-a"}},
    ),
    Case(
        "TierClass", f"{DRAM}.capacityPerNode", f"{DRAM}.capacityPerNode", SIZE, {"tiers/dram/capacityPerNode": "8GB"}
    ),
    Case(
        "TierClass",
        f"{DRAM}.capacityPerNode",
        f"{DRAM}.capacityPerNode",
        "capacityPerNode must be at least 128Mi",
        {"tiers/dram/capacityPerNode": "127Mi"},
    ),
    Case(
        "TierClass",
        DRAM,
        f"{DRAM}.capacityPerNode",
        "capacityPerNode must be a multiple of hugePages",
        {"tiers/dram/capacityPerNode": "129Mi", "tiers/dram/hugePages": "2Mi", "tiers/nvme": ...},
    ),
    Case(
        "TierClass", f"{NVME}.capacityPerNode", f"{NVME}.capacityPerNode", SIZE, {"tiers/nvme/capacityPerNode": "1e9"}
    ),
    Case(
        "TierClass",
        f"{NVME}.capacityPerNode",
        f"{NVME}.capacityPerNode",
        "capacityPerNode must be at least 256Mi",
        {"tiers/nvme/capacityPerNode": "255Mi"},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices",
        f"{NVME}.devices",
        "each device needs a path of its own",
        {"tiers/nvme/devices": TWO_DEVICES_ONE_PATH},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices",
        f"{NVME}.devices",
        "each entry needs a block device of its own",
        {"tiers/nvme/devices": TWO_ENTRIES_ONE_DEVICE},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices[]",
        f"{NVME}.devices[0]",
        "give either path (a directory) or device (a raw block device)",
        {"tiers/nvme/devices/0/device": RAW},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices[]",
        f"{NVME}.devices[0].initialize",
        "initialize is for raw block devices; in a directory kvtier touches its own folder only",
        {"tiers/nvme/devices/0/initialize": "Always"},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices[].device",
        f"{NVME}.devices[0].device",
        "must be a name that stays with the disk or partition, below /dev/disk/by-id, /dev/disk/by-partuuid or "
        "/dev/disk/by-partlabel; names such as /dev/nvme0n1 change from boot to boot",
        {"tiers/nvme/devices": [{"name": "a", "device": "/dev/nvme0n1"}]},
    ),
    Case(
        "TierClass", f"{NVME}.devices[].name", f"{NVME}.devices[0].name", LABEL, {"tiers/nvme/devices/0/name": "NVMe"}
    ),
    Case(
        "TierClass",
        f"{NVME}.devices[].path",
        f"{NVME}.devices[0].path",
        "must be an absolute path of letters, digits and ._-@+=%, not ending in /, such as /mnt/nvme0",
        {"tiers/nvme/devices/0/path": "mnt/nvme0"},
    ),
    Case(
        "TierClass",
        f"{NVME}.devices[].path",
        f"{NVME}.devices[0].path",
        "path must not have `..` or `.` parts",
        {"tiers/nvme/devices/0/path": "/mnt/../etc"},
    ),
    Case(
        "TierClass",
        TOLERATION,
        "spec.tolerations[0]",
        "a toleration without key needs operator: Exists",
        {"tolerations": [{"value": "x"}]},
    ),
    Case(
        "TierClass",
        TOLERATION,
        "spec.tolerations[0]",
        "a toleration with a value needs operator: Equal",
        {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "x"}]},
    ),
    Case(
        "TierClass",
        TOLERATION,
        "spec.tolerations[0]",
        "tolerationSeconds needs effect: NoExecute",
        {"tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 60}]},
    ),
    Case(
        "TierClass",
        "spec",
        f"{DRAM}.hugePages",
        "hugePages cannot be changed; create another class with it and delete this one",
        {"tiers/dram/hugePages": "2Mi"},
        before={},
    ),
    Case(
        "TierClass",
        "spec",
        NVME,
        "nvme cannot be taken out; create another class without it and delete this one",
        {"tiers/nvme": ...},
        before={},
    ),
    Case(
        "TierClass",
        "spec",
        f"{NVME}.devices",
        "devices can be added, not removed or moved; create another class and delete this one",
        {"tiers/nvme/devices/0/path": "/mnt/elsewhere"},
        before={},
    ),
    Case(
        "CachePool",
        "",
        "<nil>",
        "metadata.name must have at most 63 characters: it is also used as a label value",
        name="a" * 64,
    ),
    Case("CachePool", "spec.tierClass", "spec.tierClass", LABEL, {"tierClass": "flash.example"}),
    Case(
        "CachePool",
        "spec.tierClass",
        "spec.tierClass",
        "tierClass cannot be changed; create another pool",
        {"tierClass": "other"},
        before={},
    ),
    Case("CachePool", "spec.quota.dram", "spec.quota.dram", SIZE, {"quota/dram": "4 Gi"}),
    Case(
        "CachePool", "spec.quota.dram", "spec.quota.dram", "quota.dram must be at least 64Mi", {"quota/dram": "63.9Mi"}
    ),
    Case("CachePool", "spec.quota.nvme", "spec.quota.nvme", SIZE, {"quota/nvme": "lots"}),
    Case(
        "CachePool", "spec.quota.nvme", "spec.quota.nvme", "quota.nvme must be at least 128Mi", {"quota/nvme": "64Mi"}
    ),
    Case(
        "CachePool",
        "spec.serviceAccounts[].namespace",
        "spec.serviceAccounts[0].namespace",
        LABEL,
        {"serviceAccounts": [{"namespace": "*", "name": "engine"}]},
    ),
    Case(
        "CachePool",
        "spec.serviceAccounts[].name",
        "spec.serviceAccounts[0].name",
        ACCOUNT,
        {"serviceAccounts": [{"name": "engine-*"}]},
    ),
    Case(
        "CachePool",
        "spec.ttl",
        "spec.ttl",
        "must be a duration such as 36h, 30m or 1h30m: hours, minutes and seconds as whole numbers",
        {"ttl": "2d"},
    ),
    Case("CachePool", "spec.ttl", "spec.ttl", "ttl must be at least 1m", {"ttl": "59s"}),
    Case(
        "CachePool",
        "spec",
        "spec.nvme",
        "nvme needs quota.nvme: without it the pool's blocks live in DRAM only",
        {"quota": {"dram": "1Gi"}, "nvme": {"write": "back"}},
    ),
]


@pytest.mark.parametrize("case", [c for c in BROKEN if c.before is None], ids=lambda c: c.id)
def test_broken_rule_is_refused_with_its_message(api: Api, case: Case) -> None:
    (fault,) = api.faults("create", resource(case.kind, edited(BASES[case.kind], case.changes), case.name))
    assert fault.startswith(f"{case.blames}: Invalid value: ")
    assert fault.endswith(f": {case.message}")


@pytest.mark.parametrize("case", [c for c in BROKEN if c.before is not None], ids=lambda c: c.id)
def test_forbidden_change_is_refused_with_its_message(api: Api, case: Case) -> None:
    stored = resource(case.kind, edited(BASES[case.kind], case.before or {}), "stored")
    api.do("apply", "-f-", document=stored)
    try:
        (fault,) = api.faults("replace", resource(case.kind, edited(BASES[case.kind], case.changes), "stored"))
    finally:
        api.do("delete", "--wait=false", "-f-", document=stored)
    assert fault.startswith(f"{case.blames}: Invalid value: ")
    assert fault.endswith(f": {case.message}")


def test_every_rule_has_a_manifest_that_breaks_it() -> None:
    covered = {(case.kind, case.rule_at, case.message) for case in BROKEN}
    assert covered == {(kind.name, path, message) for kind in KINDS for path, message in schema_rules(kind)}


def test_all_faults_are_named_at_once(api: Api) -> None:
    spec = edited(BASES["CachePool"], {"tierClass": "A", "quota/dram": "1Mi", "quota/nvme": "x"})
    assert len(api.faults("create", resource("CachePool", spec))) == 3


ADMITTED = [
    ("TierClass", {}),
    ("TierClass", {"nodeSelector": ..., "tiers/nvme": ..., "tolerations": ...}),
    ("TierClass", {"tiers/dram/capacityPerNode": "128Mi", "tiers/nvme/capacityPerNode": "256Mi"}),
    ("TierClass", {"tiers/dram/capacityPerNode": "1.5Gi", "tiers/dram/hugePages": "2Mi"}),
    ("TierClass", {"tiers/dram/capacityPerNode": "3Gi", "tiers/dram/hugePages": "1Gi"}),
    ("TierClass", {"tiers/dram/capacityPerNode": "137438953472"}),
    ("TierClass", {"nodeSelector": {"pool": "", "a.example/b_c": "x.Y_z-1"}}),
    ("TierClass", {"tolerations": [{"operator": "Exists"}]}),
    ("TierClass", {"tolerations": [{"key": "k", "effect": "NoExecute", "tolerationSeconds": 0}]}),
    ("TierClass", {"tiers/nvme/devices": [{"name": f"n{i}", "path": f"/mnt/..data/{i}"} for i in range(32)]}),
    ("TierClass", {"tiers/nvme/devices": [{"name": f"n{i}", "device": f"{RAW}-{i}"} for i in range(32)]}),
    (
        "TierClass",
        {"tiers/nvme/devices": [{"name": "a", "device": "/dev/disk/by-partlabel/cache", "initialize": "Always"}]},
    ),
    ("CachePool", {}),
    ("CachePool", {"quota": {"dram": "64Mi"}, "serviceAccounts": ...}),
    ("CachePool", {"evictionPolicy": "lru", "ttl": "1m", "restore": "always"}),
    ("CachePool", {"ttl": "999999h999999m999999s", "nvme": {"write": "back", "admission": "reused"}}),
    ("CachePool", {"quota": {"dram": "64Mi", "nvme": "128Mi"}}),
    ("CachePool", {"serviceAccounts": [{"name": f"a.{i}"} for i in range(256)]}),
    ("CacheNode", {}),
    ("CacheNode", {"pools": ..., "drain": True}),
]


@pytest.mark.parametrize(("kind", "changes"), ADMITTED)
def test_manifest_within_the_limits_is_admitted(api: Api, kind: str, changes: Mapping[str, Any]) -> None:
    api.admit(resource(kind, edited(BASES[kind], changes)))


ALLOWED_CHANGES = [
    ("TierClass", {"tiers/nvme": ...}, {}),
    ("TierClass", {}, {"tiers/nvme/devices/1": ..., "tiers/nvme/capacityPerNode": "2Ti"}),
    ("TierClass", {}, {"tiers/dram/capacityPerNode": "4Gi", "nodeSelector": {}, "tolerations": []}),
    ("CachePool", {}, {"quota": {"dram": "1Gi"}, "serviceAccounts": []}),
    ("CachePool", {"ttl": "1h"}, {"evictionPolicy": "lru", "nvme": {"write": "back"}, "restore": "always"}),
]


@pytest.mark.parametrize(("kind", "before", "after"), ALLOWED_CHANGES)
def test_change_that_is_provided_for_is_admitted(
    api: Api, kind: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    after = dict(after)
    if after.pop("tiers/nvme/devices/1", None):
        after["tiers/nvme/devices"] = [{"name": "new", "path": "/mnt/new"}, {"name": "nvme0", "path": "/mnt/nvme0"}]
    stored = resource(kind, edited(BASES[kind], before), "stored")
    api.do("apply", "-f-", document=stored)
    try:
        api.do("replace", "--dry-run=server", "-f-", document=resource(kind, edited(BASES[kind], after), "stored"))
    finally:
        api.do("delete", "--wait=false", "-f-", document=stored)


UNFIT = [
    ("TierClass", {"tiers/dram": ...}, "spec.tiers.dram: Required value"),
    ("TierClass", {"tiers/dram/capacityPerNode": 8}, "spec.tiers.dram.capacityPerNode: Invalid value"),
    ("TierClass", {"tiers/dram/hugePages": "4Mi"}, 'supported values: "none", "2Mi", "1Gi"'),
    ("TierClass", {"tiers/nvme/devices": []}, "spec.tiers.nvme.devices: Invalid value: 0"),
    ("TierClass", {"tiers/nvme/devices": TWO_DEVICES_ONE_PATH[:1] * 2}, "spec.tiers.nvme.devices[1]: Duplicate value"),
    ("TierClass", {"tolerations": [{"key": "k", "operator": "Like"}]}, 'supported values: "Exists", "Equal"'),
    ("TierClass", {"tiers/nvme/devices/0/initialize": "Never"}, 'supported values: "IfBlank", "Always"'),
    ("CachePool", {"evictionPolicy": "fifo"}, 'supported values: "default", "lru"'),
    ("CachePool", {"nvme": {"write": "around"}}, 'supported values: "through", "back"'),
    ("CachePool", {"nvme": {"admission": "some"}}, 'supported values: "all", "reused"'),
    ("CachePool", {"restore": "never"}, 'supported values: "auto", "always"'),
    ("CachePool", {"ttl": ""}, "spec.ttl: Invalid value"),
    ("CachePool", {"tierClass": ...}, "spec.tierClass: Required value"),
    ("CachePool", {"quota": ...}, "spec.quota: Required value"),
    ("CachePool", {"serviceAccounts": [{"name": "a"}] * 257}, "spec.serviceAccounts: Too many: 257"),
    ("CacheNode", {"pools/0/quota": ...}, "spec.pools[0].quota: Required value"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), UNFIT, ids=[message for _, _, message in UNFIT])
def test_manifest_that_does_not_fit_the_schema_is_refused(
    api: Api, kind: str, changes: Mapping[str, Any], message: str
) -> None:
    faults = api.faults("create", resource(kind, edited(BASES[kind], changes)))
    assert any(message in fault for fault in faults), faults


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_field_that_does_not_exist_is_refused_by_name(api: Api, kind: str) -> None:
    result = api.run("create", "--dry-run=server", "-f-", document=resource(kind, BASES[kind] | {"capacity": "1Gi"}))
    assert result.returncode != 0
    assert 'unknown field "spec.capacity"' in result.stderr


DEFAULTS: dict[tuple[str, str], tuple[Mapping[str, Any], list[str | int], Any]] = {
    ("TierClass", "spec.tiers.dram.hugePages"): ({}, ["tiers", "dram", "hugePages"], "none"),
    ("TierClass", "spec.tolerations[].operator"): (
        {"tolerations": [{"key": "k"}]},
        ["tolerations", 0, "operator"],
        "Equal",
    ),
    ("TierClass", "spec.tiers.nvme.devices[].initialize"): (
        {},
        ["tiers", "nvme", "devices", 0, "initialize"],
        "IfBlank",
    ),
    ("CachePool", "spec.evictionPolicy"): ({}, ["evictionPolicy"], "default"),
    ("CachePool", "spec.nvme.write"): ({"nvme": {}}, ["nvme", "write"], "through"),
    ("CachePool", "spec.nvme.admission"): ({"nvme": {}}, ["nvme", "admission"], "all"),
    ("CachePool", "spec.restore"): ({}, ["restore"], "auto"),
    ("CacheNode", "spec.tiers.dram.hugePages"): ({}, ["tiers", "dram", "hugePages"], "none"),
    ("CacheNode", "spec.tiers.nvme.devices[].initialize"): (
        {"tiers/nvme": {"capacityPerNode": "1Gi", "devices": [{"name": "a", "device": RAW}]}},
        ["tiers", "nvme", "devices", 0, "initialize"],
        "IfBlank",
    ),
    ("CacheNode", "spec.pools[].evictionPolicy"): ({}, ["pools", 0, "evictionPolicy"], "default"),
    ("CacheNode", "spec.pools[].nvme.write"): ({"pools/0/nvme": {}}, ["pools", 0, "nvme", "write"], "through"),
    ("CacheNode", "spec.pools[].nvme.admission"): ({"pools/0/nvme": {}}, ["pools", 0, "nvme", "admission"], "all"),
    ("CacheNode", "spec.pools[].restore"): ({}, ["pools", 0, "restore"], "auto"),
    ("CacheNode", "spec.drain"): ({}, ["drain"], False),
}


@pytest.mark.parametrize("key", DEFAULTS, ids=["-".join(key) for key in DEFAULTS])
def test_default_is_filled_in(api: Api, key: tuple[str, str]) -> None:
    changes, place, value = DEFAULTS[key]
    found: Any = api.admit(resource(key[0], edited(BASES[key[0]], changes)))["spec"]
    for part in place:
        found = found[part]
    assert found == value


def test_every_default_has_a_case() -> None:
    defaults = {
        (kind.name, path): node["default"] for kind in KINDS for path, node in schema_nodes(kind) if "default" in node
    }
    assert defaults == {key: value for key, (_, _, value) in DEFAULTS.items()}
