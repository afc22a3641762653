"""Whether the node has what its class asks for. Pure: facts in, the condition Preflight out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePosixPath
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.models import CacheNodeSpec, HugePages, Initialize, NvmeDevice
from kvtier_crds.names import DEVICE_FOLDER
from kvtier_crds.words import Verdict, about

from kvtier_agent.config import parse_quantity
from kvtier_agent.node.kubelet import DEFAULT, Threshold
from kvtier_agent.node.raw_devices import RawFacts, RawState

PAGE_BYTES: Final = {HugePages.SIZE_2MI: 2 << 20, HugePages.SIZE_1GI: 1 << 30}


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
    raw_devices: tuple[RawFacts, ...] = ()
    eviction: Threshold = DEFAULT
    """What the kubelet wants left on its own file system."""


Problem = tuple[Reason, str]


def decide_preflight(node: str, spec: CacheNodeSpec, facts: Facts) -> Verdict:
    """The condition Preflight. The first problem gives the reason, the message names all of that reason."""
    problems = [problem for check in (*CHECKS, *RAW_CHECKS) for problem in check(node, spec, facts)]
    if not problems:
        return Verdict(ConditionType.PREFLIGHT, "True", Reason.PREFLIGHT_PASSED, f"node {node} has what is asked for")
    reason = problems[0][0]
    message = "; ".join(text for cause, text in problems if cause is reason)
    return Verdict(ConditionType.PREFLIGHT, "False", reason, message)


def can_start(node: str, spec: CacheNodeSpec, facts: Facts) -> bool:
    """Whether the node is prepared for a store: raw devices may follow once they are mended."""
    return not any(True for check in CHECKS for _ in check(node, spec, facts))


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
        reserve = facts.eviction.reserve(first.size_bytes) if first.holds_kubelet else 0
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


def check_raw_devices(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """Every raw device can be handed to the store."""
    for raw, fact in zip(raw_devices(spec), facts.raw_devices, strict=True):
        if problem := raw_problem(node, raw, fact):
            yield problem


def raw_problem(node: str, raw: NvmeDevice, fact: RawFacts) -> Problem | None:
    """Why a raw device is not handed to the store, and what mends it; None: it is."""
    named = f"{fact.device} ({fact.node}) on node {node}"
    match fact.state:
        case RawState.MISSING:
            return (
                Reason.DEVICE_MISSING,
                f"{fact.detail} does not exist on node {node}; attach the disk, or see which there are: "
                f"ls -l {PurePosixPath(fact.device).parent}",
            )
        case RawState.NO_BLOCK_DEVICE:
            return (
                Reason.DEVICE_UNUSABLE,
                f"{named} is no block device; a directory goes into `path` of device {raw.name}",
            )
        case RawState.READ_ONLY:
            return (
                Reason.DEVICE_READ_ONLY,
                f"{named} is read-only; allow writing: blockdev --setrw {fact.node}; a disk that stays read-only is "
                "worn out",
            )
        case RawState.IN_USE:
            return (
                Reason.DEVICE_IN_USE,
                f"{named} is {fact.detail}; kvtier needs all of it, so see who has it and end that: "
                f"lsblk {fact.node}; fuser -v {fact.node}",
            )
        case RawState.FOREIGN if raw.initialize is Initialize.IF_BLANK:
            return (
                Reason.DEVICE_NOT_BLANK,
                f"{named} holds something that is not kvtier's; if it may be destroyed, blank it: "
                f"blkdiscard --zeroout --force {fact.node}, or set initialize: Always",
            )
        case _:
            return None


def check_raw_space(node: str, spec: CacheNodeSpec, facts: Facts) -> Iterator[Problem]:
    """Every raw device is as large as its share of the capacity."""
    if spec.tiers.nvme is None:
        return
    share = parse_quantity(spec.tiers.nvme.capacity_per_node) // len(spec.tiers.nvme.devices)
    for fact in facts.raw_devices:
        if 0 < fact.size_bytes < share:
            yield (
                Reason.DISK_SPACE_SHORT,
                f"{fact.device} ({fact.node}) on node {node} has {about(fact.size_bytes)}, and {about(share)} of "
                f"spec.tiers.nvme.capacityPerNode shall go there; lower the capacity of TierClass {spec.tier_class}",
            )


def raw_devices(spec: CacheNodeSpec) -> list[NvmeDevice]:
    """The devices of the spec that are raw block devices."""
    return [device for device in spec.tiers.nvme.devices if device.device] if spec.tiers.nvme else []


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


Check = Callable[[str, CacheNodeSpec, Facts], Iterator[Problem]]
CHECKS: Final[tuple[Check, ...]] = (check_paths, check_space, check_memory, check_huge_pages)
"""What the store cannot start without, in order of precedence."""
RAW_CHECKS: Final[tuple[Check, ...]] = (check_raw_devices, check_raw_space)
"""After these."""
