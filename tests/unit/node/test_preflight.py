"""The condition Preflight: each cause with its reason and its whole message."""

from __future__ import annotations

from typing import Any

import pytest
from kvtier_agent.node.kubelet import Threshold
from kvtier_agent.node.preflight import DeviceFacts, Facts, PathState, can_start, decide_preflight
from kvtier_agent.node.raw_devices import RawFacts, RawState
from kvtier_crds.conditions import Reason

from tests.unit.node.cache_nodes import cache_node

GIB = 1 << 30


def device(path: str = "/mnt/nvme0", state: PathState = PathState.FOLDER, **facts: Any) -> DeviceFacts:
    return DeviceFacts(**{"path": path, "state": state, "filesystem": 1, "size_bytes": 100 * GIB,
                          "free_bytes": 50 * GIB} | facts)  # fmt: skip


ID = "/dev/disk/by-id/nvme-eui.01"
RAW = ({"name": "r0", "device": ID},)


def raw(state: RawState, **facts: Any) -> Facts:
    fact = RawFacts(**{"device": ID, "state": state, "node": "/dev/nvme1n1", "size_bytes": 50 * GIB} | facts)
    return Facts(16 * GIB, 0, raw_devices=(fact,))


RAW_PROBLEMS = [
    pytest.param(
        RawState.MISSING,
        {"detail": ID},
        Reason.DEVICE_MISSING,
        f"{ID} does not exist on node n1; attach the disk, or see which there are: ls -l /dev/disk/by-id",
        id="missing",
    ),
    pytest.param(
        RawState.NO_BLOCK_DEVICE,
        {},
        Reason.DEVICE_UNUSABLE,
        f"{ID} (/dev/nvme1n1) on node n1 is no block device; a directory goes into `path` of device r0",
        id="no-device",
    ),
    pytest.param(
        RawState.READ_ONLY,
        {},
        Reason.DEVICE_READ_ONLY,
        f"{ID} (/dev/nvme1n1) on node n1 is read-only; allow writing: blockdev --setrw /dev/nvme1n1; a disk that stays "
        "read-only is worn out",
        id="read-only",
    ),
    pytest.param(
        RawState.IN_USE,
        {"detail": "mounted at /var"},
        Reason.DEVICE_IN_USE,
        f"{ID} (/dev/nvme1n1) on node n1 is mounted at /var; kvtier needs all of it, so see who has it and end that: "
        "lsblk /dev/nvme1n1; fuser -v /dev/nvme1n1",
        id="in-use",
    ),
    pytest.param(
        RawState.FOREIGN,
        {},
        Reason.DEVICE_NOT_BLANK,
        f"{ID} (/dev/nvme1n1) on node n1 holds something that is not kvtier's; if it may be destroyed, blank it: "
        "blkdiscard --zeroout --force /dev/nvme1n1, or set initialize: Always",
        id="not-blank",
    ),
    pytest.param(
        RawState.USABLE,
        {"size_bytes": GIB // 2},
        Reason.DISK_SPACE_SHORT,
        f"{ID} (/dev/nvme1n1) on node n1 has 512Mi, and 1Gi of spec.tiers.nvme.capacityPerNode shall go there; lower "
        "the capacity of TierClass gpu",
        id="small",
    ),
]


@pytest.mark.parametrize(("state", "fact", "reason", "message"), RAW_PROBLEMS)
def test_raw_device_that_is_lacking_is_named_and_the_store_starts_without_it(
    state: RawState, fact: dict[str, Any], reason: Reason, message: str
) -> None:
    spec = cache_node(devices=RAW).spec
    facts = raw(state, **fact)
    verdict = decide_preflight("n1", spec, facts)
    assert (verdict.status, verdict.reason, verdict.message) == ("False", reason, message)
    assert can_start("n1", spec, facts)


@pytest.mark.parametrize(
    ("initialize", "facts"),
    [
        ("IfBlank", raw(RawState.USABLE)),
        ("Always", raw(RawState.FOREIGN)),
        ("IfBlank", raw(RawState.USABLE, node="", size_bytes=0)),
    ],
    ids=["blank-or-ours", "to-be-overwritten", "held-by-our-store"],
)
def test_raw_device_that_can_be_had_passes(initialize: str, facts: Facts) -> None:
    spec = cache_node(devices=({"name": "r0", "device": ID, "initialize": initialize},)).spec
    assert decide_preflight("n1", spec, facts).reason is Reason.PREFLIGHT_PASSED


def test_what_keeps_the_store_from_starting_is_named_before_a_raw_device() -> None:
    spec = cache_node(devices=({"name": "d0", "path": "/mnt/a"}, *RAW)).spec
    lost = device("/mnt/a", PathState.MISSING, detail="/mnt/a")
    facts = Facts(16 * GIB, 0, (lost,), raw(RawState.MISSING, detail=ID).raw_devices)
    assert decide_preflight("n1", spec, facts).reason is Reason.DEVICE_PATH_MISSING
    assert not can_start("n1", spec, facts)


def test_kubelets_own_threshold_counts() -> None:
    spec = cache_node(nvme="45Gi").spec
    facts = Facts(16 * GIB, 0, (device(holds_kubelet=True),), eviction=Threshold(size_bytes=GIB))
    assert decide_preflight("n1", spec, facts).reason is Reason.PREFLIGHT_PASSED
    larger = Facts(16 * GIB, 0, (device(holds_kubelet=True),), eviction=Threshold(size_bytes=6 * GIB))
    assert "beside the 6Gi below which the kubelet evicts pods" in decide_preflight("n1", spec, larger).message


@pytest.mark.parametrize(
    ("spec", "facts", "reason", "message"),
    [
        pytest.param(
            {},
            Facts(16 * GIB, 0, (device(),)),
            Reason.PREFLIGHT_PASSED,
            "node n1 has what is asked for",
            id="all-there",
        ),
        pytest.param(
            {},
            Facts(16 * GIB, 0, (device(state=PathState.MISSING, detail="/mnt/nvme0"),)),
            Reason.DEVICE_PATH_MISSING,
            "/mnt/nvme0 does not exist on node n1; create it or mount the disk there: "
            "mount --mkdir /dev/DISK /mnt/nvme0",
            id="missing",
        ),
        pytest.param(
            {"paths": ("/mnt/a", "/mnt/b")},
            Facts(
                16 * GIB,
                0,
                (
                    device("/mnt/a", PathState.MISSING, detail="/mnt/a"),
                    device("/mnt/b", PathState.MISSING, detail="/mnt/b"),
                ),
            ),
            Reason.DEVICE_PATH_MISSING,
            "/mnt/a does not exist on node n1; create it or mount the disk there: mount --mkdir /dev/DISK /mnt/a; "
            "/mnt/b does not exist on node n1; create it or mount the disk there: mount --mkdir /dev/DISK /mnt/b",
            id="all-missing-paths-are-named",
        ),
        pytest.param(
            {},
            Facts(16 * GIB, 0, (device(state=PathState.NO_FOLDER, detail="/mnt"),)),
            Reason.DEVICE_UNUSABLE,
            "/mnt on node n1 is a symbolic link or no directory; name the directory itself in TierClass gpu",
            id="link",
        ),
        pytest.param(
            {},
            Facts(16 * GIB, 0, (device(state=PathState.READ_ONLY),)),
            Reason.DEVICE_UNUSABLE,
            "/mnt/nvme0 on node n1 is read-only; mount it for writing: mount -o remount,rw /mnt/nvme0",
            id="read-only",
        ),
        pytest.param(
            {},
            Facts(16 * GIB, 0, (device(state=PathState.FOREIGN, detail="a directory of user 1000"),)),
            Reason.DEVICE_UNUSABLE,
            "/mnt/nvme0/kvtier on node n1 is a directory of user 1000; move it away, kvtier needs that name",
            id="foreign-folder",
        ),
        pytest.param(
            {"nvme": "60Gi"},
            Facts(16 * GIB, 0, (device(),)),
            Reason.DISK_SPACE_SHORT,
            "/mnt/nvme0 on node n1 has room for 50Gi, and 60Gi of spec.tiers.nvme.capacityPerNode shall go there; "
            "free 10Gi or lower the capacity of TierClass gpu",
            id="space",
        ),
        pytest.param(
            {"nvme": "60Gi"},
            Facts(16 * GIB, 0, (device(used_bytes=10 * GIB),)),
            Reason.PREFLIGHT_PASSED,
            "node n1 has what is asked for",
            id="space-that-kvtier-takes-already-counts",
        ),
        pytest.param(
            {"nvme": "45Gi"},
            Facts(16 * GIB, 0, (device(holds_kubelet=True),)),
            Reason.DISK_SPACE_SHORT,
            "/mnt/nvme0 on node n1 has room for 40Gi beside the 10Gi below which the kubelet evicts pods, and 45Gi of "
            "spec.tiers.nvme.capacityPerNode shall go there; free 5Gi or lower the capacity of TierClass gpu",
            id="space-that-the-kubelet-wants-left",
        ),
        pytest.param(
            {"nvme": "60Gi", "paths": ("/mnt/a", "/mnt/b")},
            Facts(16 * GIB, 0, (device("/mnt/a"), device("/mnt/b"))),
            Reason.DISK_SPACE_SHORT,
            "/mnt/a, /mnt/b on node n1 has room for 50Gi, and 60Gi of spec.tiers.nvme.capacityPerNode shall go there; "
            "free 10Gi or lower the capacity of TierClass gpu",
            id="devices-that-share-a-file-system-share-its-space",
        ),
        pytest.param(
            {"nvme": "60Gi", "paths": ("/mnt/a", "/mnt/b")},
            Facts(16 * GIB, 0, (device("/mnt/a"), device("/mnt/b", filesystem=2))),
            Reason.PREFLIGHT_PASSED,
            "node n1 has what is asked for",
            id="devices-on-two-file-systems-have-both",
        ),
        pytest.param(
            {"dram": "32Gi"},
            Facts(16 * GIB, 0, (device(),)),
            Reason.ARENA_UNAVAILABLE,
            "node n1 has 16Gi of memory, and spec.tiers.dram.capacityPerNode of TierClass gpu is 32Gi; lower it",
            id="memory",
        ),
        pytest.param(
            {"dram": "8Gi", "huge_pages": "2Mi"},
            Facts(16 * GIB, 100, (device(),)),
            Reason.HUGE_PAGES_MISSING,
            "node n1 has 100 of the 4096 huge pages of 2Mi that TierClass gpu asks for; reserve them and restart the "
            "kubelet: sysctl -w vm.nr_hugepages=4096",
            id="huge-pages-2Mi",
        ),
        pytest.param(
            {"dram": "8Gi", "huge_pages": "1Gi"},
            Facts(16 * GIB, 0, (device(),)),
            Reason.HUGE_PAGES_MISSING,
            "node n1 has 0 of the 8 huge pages of 1Gi that TierClass gpu asks for; reserve them and restart the "
            "kubelet: boot with hugepagesz=1G hugepages=8",
            id="huge-pages-1Gi",
        ),
        pytest.param(
            {"dram": "32Gi"},
            Facts(16 * GIB, 0, (device(state=PathState.MISSING, detail="/mnt/nvme0"),)),
            Reason.DEVICE_PATH_MISSING,
            "/mnt/nvme0 does not exist on node n1; create it or mount the disk there: "
            "mount --mkdir /dev/DISK /mnt/nvme0",
            id="first-cause-wins",
        ),
    ],
)
def test_preflight_names_cause_and_remedy(spec: dict[str, Any], facts: Facts, reason: Reason, message: str) -> None:
    verdict = decide_preflight("n1", cache_node(**spec).spec, facts)
    assert (verdict.reason, verdict.message) == (reason, message)
    assert verdict.status == ("True" if reason is Reason.PREFLIGHT_PASSED else "False")
