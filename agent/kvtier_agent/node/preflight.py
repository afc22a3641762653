"""Whether the node has what its class asks for. Pure: facts in, the condition Preflight out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import CacheNodeSpec, HugePages
from kvtier_crds.names import DEVICE_FOLDER
from kvtier_crds.words import Verdict, about

from kvtier_agent.config import parse_quantity

PAGE_BYTES: Final = {HugePages.SIZE_2MI: 2 << 20, HugePages.SIZE_1GI: 1 << 30}
EVICTION_FRACTION: Final = 0.10
"""The kubelet's default: it evicts pods when its file system has less than this part free."""


class PathState(Enum):
    """What stands at a device's path."""

    FOLDER = auto()
    MISSING = auto()
    NO_FOLDER = auto()
    READ_ONLY = auto()
    FOREIGN = auto()
    """Its folder `kvtier` is there and is not ours."""


@dataclass(frozen=True)
class DeviceFacts:
    """One path of spec.tiers.nvme.devices, as it was found. The sizes are of its file system."""

    path: str
    state: PathState
    detail: str = ""
    """The part of the path that is at fault, or the owner."""
    filesystem: int = 0
    size_bytes: int = 0
    free_bytes: int = 0
    used_bytes: int = 0
    """What kvtier's folder takes."""
    holds_kubelet: bool = False
    """The kubelet's own folder is on it, so that too little space there evicts pods."""


@dataclass(frozen=True)
class Facts:
    """The node as it was found."""

    memory_bytes: int
    huge_pages: int
    """Reserved pages of the size that the class asks for."""
    devices: tuple[DeviceFacts, ...] = ()


Problem = tuple[Reason, str]


def decide_preflight(node: str, spec: CacheNodeSpec, facts: Facts) -> Verdict:
    """The condition Preflight. The first problem gives the reason, the message names all of that reason."""
    problems = [problem for check in CHECKS for problem in check(node, spec, facts)]
    if not problems:
        return Verdict(ConditionType.PREFLIGHT, "True", Reason.PREFLIGHT_PASSED, f"node {node} has what is asked for")
    reason = problems[0][0]
    message = "; ".join(text for cause, text in problems if cause is reason)
    return Verdict(ConditionType.PREFLIGHT, "False", reason, message)


def check_paths(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """Every device is a folder that kvtier can make its own folder in."""
    for device in facts.devices:
        path = device.path
        match device.state:
            case PathState.MISSING:
                yield (
                    Reason.DEVICE_PATH_MISSING,
                    f"{device.detail} does not exist on node {node}; create it or mount the disk there: "
                    f"mount --mkdir /dev/DISK {path}",
                )
            case PathState.NO_FOLDER:
                yield (
                    Reason.DEVICE_UNUSABLE,
                    f"{device.detail} on node {node} is a symbolic link or no directory; name the directory itself "
                    f"in TierClass {spec.tier_class}",
                )
            case PathState.READ_ONLY:
                yield (
                    Reason.DEVICE_UNUSABLE,
                    f"{path} on node {node} is read-only; mount it for writing: mount -o remount,rw {path}",
                )
            case PathState.FOREIGN:
                yield (
                    Reason.DEVICE_UNUSABLE,
                    f"{path}/{DEVICE_FOLDER} on node {node} is {device.detail}; move it away, kvtier needs that name",
                )
            case PathState.FOLDER:
                pass


def check_space(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """Every file system has room for the shares of its devices, and for what the kubelet wants left."""
    if spec.tiers.nvme is None:
        return
    share = parse_quantity(spec.tiers.nvme.capacity_per_node) // len(spec.tiers.nvme.devices)
    by_filesystem: defaultdict[int, list[DeviceFacts]] = defaultdict(list)
    for device in facts.devices:
        if device.state is PathState.FOLDER:
            by_filesystem[device.filesystem].append(device)
    for devices in by_filesystem.values():
        first = devices[0]
        paths = ", ".join(device.path for device in devices)
        reserve = int(first.size_bytes * EVICTION_FRACTION) if first.holds_kubelet else 0
        wanted = share * len(devices)
        room = first.free_bytes + sum(device.used_bytes for device in devices) - reserve
        if room < wanted:
            kept = f" beside the {about(reserve)} below which the kubelet evicts pods" if reserve else ""
            yield (
                Reason.DISK_SPACE_SHORT,
                f"{paths} on node {node} has room for {about(max(room, 0))}{kept}, and {about(wanted)} of "
                f"spec.tiers.nvme.capacityPerNode shall go there; free {about(wanted - room)} or lower the capacity of "
                f"TierClass {spec.tier_class}",
            )


def check_memory(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """The node has more memory than the arena may take. Whether it is free is the scheduler's business."""
    dram = spec.tiers.dram
    if dram.huge_pages is HugePages.NONE and parse_quantity(dram.capacity_per_node) >= facts.memory_bytes:
        yield (
            Reason.ARENA_UNAVAILABLE,
            f"node {node} has {about(facts.memory_bytes)} of memory, and spec.tiers.dram.capacityPerNode of TierClass "
            f"{spec.tier_class} is {dram.capacity_per_node}; lower it",
        )


def check_huge_pages(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """The node has reserved the huge pages that the arena may take."""
    dram = spec.tiers.dram
    if dram.huge_pages is HugePages.NONE:
        return
    page = PAGE_BYTES[dram.huge_pages]
    wanted = -(-parse_quantity(dram.capacity_per_node) // page)
    if facts.huge_pages < wanted:
        command = (
            f"sysctl -w vm.nr_hugepages={wanted}"
            if dram.huge_pages is HugePages.SIZE_2MI
            else f"boot with hugepagesz=1G hugepages={wanted}"
        )
        yield (
            Reason.HUGE_PAGES_MISSING,
            f"node {node} has {facts.huge_pages} of the {wanted} huge pages of {dram.huge_pages.value} that TierClass "
            f"{spec.tier_class} asks for; reserve them and restart the kubelet: {command}",
        )


CHECKS: Final[tuple[Callable[[str, CacheNodeSpec, Facts], Iterator[Problem]], ...]] = (
    check_paths,
    check_space,
    check_memory,
    check_huge_pages,
)
"""In order of precedence."""
