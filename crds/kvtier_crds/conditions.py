"""Condition types and reasons, with meaning and remedy: the one list of them.

The operator and the agents take the words from here; docs/resources.md shows the table. A reason is
stable for programs: its text may improve, its name stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

Status = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """Aspects of a resource's state."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    PREFLIGHT = "Preflight"
    DRAINED = "Drained"
    RELEASED = "Released"


class Reason(StrEnum):
    """Causes, one word each."""

    # TierClass
    ALL_NODES_READY = "AllNodesReady"
    NO_NODES_SELECTED = "NoNodesSelected"
    NODES_NOT_READY = "NodesNotReady"
    NODES_CONTESTED = "NodesContested"
    NODE_NOT_READY = "NodeNotReady"
    NODE_TAINTED = "NodeTainted"
    NO_ROOM = "NoRoom"
    STORE_FAILING = "StoreFailing"
    ROLLING_OUT = "RollingOut"
    ROLLED_OUT = "RolledOut"
    APPLY_FAILED = "ApplyFailed"
    DELETION_BLOCKED = "DeletionBlocked"
    # CachePool
    ALL_NODES_SERVING = "AllNodesServing"
    NODES_NOT_SERVING = "NodesNotServing"
    TIER_CLASS_NOT_FOUND = "TierClassNotFound"
    NVME_NOT_IN_CLASS = "NvmeNotInClass"
    QUOTA_EXCEEDS_CAPACITY = "QuotaExceedsCapacity"
    TOO_MANY_POOLS = "TooManyPools"
    TOO_MANY_ACCOUNTS = "TooManyAccounts"
    # CacheNode
    SERVING = "Serving"
    STARTING = "Starting"
    RECOVERING = "Recovering"
    NODE_AGENT_UNAVAILABLE = "NodeAgentUnavailable"
    STORE_STOPPED = "StoreStopped"
    DEVICE_FAILED = "DeviceFailed"
    DEVICE_GONE = "DeviceGone"
    DEVICE_REFUSED = "DeviceRefused"
    DEVICE_FULL = "DeviceFull"
    DEVICE_SLOW = "DeviceSlow"
    NO_DIRECT_IO = "NoDirectIo"
    PREFLIGHT_PASSED = "PreflightPassed"
    ARENA_UNAVAILABLE = "ArenaUnavailable"
    HUGE_PAGES_MISSING = "HugePagesMissing"
    DEVICE_PATH_MISSING = "DevicePathMissing"
    DEVICE_UNUSABLE = "DeviceUnusable"
    DEVICE_MISSING = "DeviceMissing"
    DEVICE_IN_USE = "DeviceInUse"
    DEVICE_NOT_BLANK = "DeviceNotBlank"
    DEVICE_READ_ONLY = "DeviceReadOnly"
    DISK_SPACE_SHORT = "DiskSpaceShort"
    NOT_DRAINING = "NotDraining"
    FLUSHING = "Flushing"
    FLUSHED = "Flushed"
    IN_USE = "InUse"
    RELEASE_BLOCKED = "ReleaseBlocked"
    NOTHING_LEFT = "NothingLeft"
    # several kinds
    INVALID_SPEC = "InvalidSpec"
    AS_EXPECTED = "AsExpected"
    DRAINING = "Draining"


@dataclass(frozen=True)
class ReasonText:
    """What a reason means under one condition, and what to do about it."""

    reason: Reason
    status: Status
    meaning: str
    remedy: str = "Nothing to do."


@dataclass(frozen=True)
class ConditionText:
    """A condition of a kind: what True says, who writes it, and its reasons."""

    kind: str
    type: ConditionType
    writer: str
    meaning: str
    reasons: tuple[ReasonText, ...]


_BLANK_IT: Final = (
    "If it may be destroyed, blank it with the command in the message, or set initialize: Always on the device."
)
_ACCOUNTS: Final = (
    "The pools' service accounts exceed what a node's object holds; this pool's last ones are not granted."
)
_FEWER_ACCOUNTS: Final = (
    "Name fewer in spec.serviceAccounts, or `*` for a namespace of your own; or spread the pools over several classes."
)


def _device_reasons(status: Status) -> tuple[ReasonText, ...]:
    """What a store says about a device that is not as it should be, the worst first."""
    return (
        ReasonText(
            Reason.DEVICE_GONE,
            status,
            "A device is not there, or no more. Its blocks are misses until it is back.",
            "Attach or mount it again, and it is taken back by itself; one that is gone for good is replaced by a "
            "blank one and a restart of the store's pod.",
        ),
        ReasonText(
            Reason.DEVICE_FAILED,
            status,
            "A device answers with errors. Its blocks are misses, and nothing is written to it; it is tried again.",
            "Check the disk (dmesg, smartctl) and replace it if it is worn out; it is taken back by itself.",
        ),
        ReasonText(
            Reason.DEVICE_REFUSED,
            status,
            "A device holds what is not kvtier's, or a format that this version does not know; it is left alone.",
            "Follow the message: blank the device, or run the version that wrote it.",
        ),
        ReasonText(
            Reason.DEVICE_READ_ONLY,
            status,
            "A device refuses writes. Its blocks are still read; nothing new is written to it.",
            "Make it writable (remount, blockdev --setrw), or replace the disk if it is worn out.",
        ),
        ReasonText(
            Reason.DEVICE_FULL,
            status,
            "A device has less room than its share of the capacity: others use it too. Its blocks are still read.",
            "Free space on it, or lower spec.tiers.nvme.capacityPerNode; writing goes on by itself.",
        ),
        ReasonText(
            Reason.DEVICE_SLOW,
            status,
            "A device answers later than its deadline. What it does not deliver in time is a miss.",
            "Look for other load on it (iostat -x), and check the disk (smartctl); it is used fully again by itself.",
        ),
        ReasonText(
            Reason.NO_DIRECT_IO,
            status,
            "A device's file system takes no direct I/O, so that reads pass through the page cache.",
            "Use a file system with direct I/O, such as ext4 or xfs.",
        ),
    )


CONDITIONS: Final = (
    ConditionText(
        "TierClass",
        ConditionType.READY,
        "kvtier-operator",
        "The class has at least one node, and the store of every one of its nodes serves.",
        (
            ReasonText(Reason.ALL_NODES_READY, "True", "Every node of the class serves."),
            ReasonText(
                Reason.NO_NODES_SELECTED,
                "False",
                "No Linux node carries all labels of spec.nodeSelector.",
                "Compare spec.nodeSelector with `kubectl get nodes --show-labels`; label the nodes or change it.",
            ),
            ReasonText(
                Reason.NODES_CONTESTED,
                "False",
                "Every selected node belongs to a class that was created earlier.",
                "Narrow the nodeSelector of one of the two classes, or delete one.",
            ),
            ReasonText(
                Reason.NODES_NOT_READY,
                "False",
                "Some nodes do not serve; the message names one and its cause.",
                "Follow the message; Degraded says what is wrong, Progressing whether it is merely under way.",
            ),
            ReasonText(
                Reason.INVALID_SPEC,
                "False",
                "The stored spec does not fit this version of kvtier; nothing of the class is changed until it does.",
                "Correct the fields that the message names.",
            ),
            ReasonText(
                Reason.DRAINING,
                "False",
                "The class is being deleted; the message names what it still waits for.",
                "Wait. If a node is gone for good, delete its Node object: the class then no longer waits for it.",
            ),
        ),
    ),
    ConditionText(
        "TierClass",
        ConditionType.PROGRESSING,
        "kvtier-operator",
        "Something is being rolled out or taken down.",
        (
            ReasonText(
                Reason.ROLLING_OUT, "True", "Some nodes do not yet have the current specification.", "Wait for it."
            ),
            ReasonText(
                Reason.DRAINING,
                "True",
                "The class is being deleted, or some of its nodes no longer belong to it; they are emptied.",
                "Wait for it.",
            ),
            ReasonText(Reason.ROLLED_OUT, "False", "Every node has the current specification."),
        ),
    ),
    ConditionText(
        "TierClass",
        ConditionType.DEGRADED,
        "kvtier-operator",
        "Something needs a person. The message names the node and what to do; the first cause in this order is given.",
        (
            ReasonText(
                Reason.INVALID_SPEC,
                "True",
                "The stored spec does not fit this version of kvtier; nothing of the class is changed until it does.",
                "Correct the fields that the message names.",
            ),
            ReasonText(
                Reason.DELETION_BLOCKED,
                "True",
                "The class is being deleted, and a node cannot be emptied; the message names it.",
                "Follow the message. If the node is gone for good, delete its Node object.",
            ),
            ReasonText(
                Reason.APPLY_FAILED,
                "True",
                "The API server refuses an object that the class needs; the message carries its answer.",
                "Correct what the answer names; it is tried again.",
            ),
            ReasonText(
                Reason.NODES_CONTESTED,
                "True",
                "Some selected nodes belong to a class that was created earlier.",
                "Narrow the nodeSelector of one of the two classes.",
            ),
            ReasonText(
                Reason.NODE_NOT_READY,
                "True",
                "A node of the class is not Ready in Kubernetes.",
                "See `kubectl describe node`; delete the Node object if the machine is gone for good.",
            ),
            ReasonText(
                Reason.NODE_TAINTED,
                "True",
                "A selected node carries a taint that the class does not tolerate.",
                "Add the toleration to spec.tolerations, or take the taint off the node.",
            ),
            ReasonText(
                Reason.NO_ROOM,
                "True",
                "The store's pod does not fit on a node: it requests more memory, CPU or huge pages than is left.",
                "Lower spec.tiers.dram.capacityPerNode, reserve huge pages, or move other pods away.",
            ),
            ReasonText(
                Reason.DEVICE_PATH_MISSING,
                "True",
                "A directory of spec.tiers.nvme.devices is missing on a node.",
                "Mount the disk there, or correct the path. kvtier never creates it.",
            ),
            ReasonText(
                Reason.DEVICE_UNUSABLE,
                "True",
                "A directory of spec.tiers.nvme.devices cannot be used on a node.",
                "See the condition Preflight of its CacheNode.",
            ),
            ReasonText(
                Reason.DISK_SPACE_SHORT,
                "True",
                "A device has less free space than its share of spec.tiers.nvme.capacityPerNode.",
                "Free space, or lower the capacity.",
            ),
            ReasonText(
                Reason.HUGE_PAGES_MISSING,
                "True",
                "A node has fewer huge pages than spec.tiers.dram asks for.",
                "Reserve them on the node, or set hugePages: none.",
            ),
            ReasonText(
                Reason.ARENA_UNAVAILABLE,
                "True",
                "A node cannot mount the memory file system of the DRAM tier.",
                "See the condition Preflight of its CacheNode.",
            ),
            ReasonText(
                Reason.NODE_AGENT_UNAVAILABLE,
                "True",
                "kvtier-node does not run on a node, or does not serve this class's store there.",
                "Check the DaemonSet kvtier-node of the release namespace: its tolerations and its pods' logs.",
            ),
            ReasonText(
                Reason.STORE_FAILING,
                "True",
                "A store's pod keeps ending or cannot start.",
                "Read the message, then the logs of the named pod.",
            ),
            ReasonText(
                Reason.DEVICE_MISSING,
                "True",
                "A raw block device of the class is not there. The store runs without it.",
                "Attach the disk, or correct the name in the class.",
            ),
            ReasonText(
                Reason.DEVICE_IN_USE,
                "True",
                "A raw block device of the class is mounted, or another program has it.",
                "Follow the message; kvtier needs the whole device.",
            ),
            ReasonText(
                Reason.DEVICE_NOT_BLANK,
                "True",
                "A raw block device holds something that is not kvtier's; it is left alone.",
                _BLANK_IT,
            ),
            *_device_reasons("True"),
            ReasonText(Reason.AS_EXPECTED, "False", "Nothing needs a person."),
        ),
    ),
    ConditionText(
        "CachePool",
        ConditionType.READY,
        "kvtier-operator",
        "Its class exists and has room for the quota, and every ready node of the class serves the pool.",
        (
            ReasonText(Reason.ALL_NODES_SERVING, "True", "Every ready node of the class serves the pool."),
            ReasonText(
                Reason.TIER_CLASS_NOT_FOUND,
                "False",
                "The TierClass that spec.tierClass names does not exist.",
                "Create it, or create the pool again with another spec.tierClass (it cannot be changed).",
            ),
            ReasonText(
                Reason.NVME_NOT_IN_CLASS,
                "False",
                "spec.quota.nvme is set, but the class has no nvme tier.",
                "Take spec.quota.nvme out, or add spec.tiers.nvme to the class.",
            ),
            ReasonText(
                Reason.QUOTA_EXCEEDS_CAPACITY,
                "False",
                "The quota is above what the class gives each node for that tier.",
                "Lower spec.quota, or raise capacityPerNode of the class.",
            ),
            ReasonText(
                Reason.NODES_NOT_SERVING,
                "False",
                "No node serves the pool yet, or some do not.",
                "Wait; if it lasts, look at the conditions of the TierClass.",
            ),
            ReasonText(
                Reason.TOO_MANY_POOLS,
                "False",
                "The class has 512 older pools, which is all that a node takes.",
                "Delete pools that are no longer used, or use another class.",
            ),
            ReasonText(Reason.TOO_MANY_ACCOUNTS, "False", _ACCOUNTS, _FEWER_ACCOUNTS),
            ReasonText(
                Reason.INVALID_SPEC,
                "False",
                "The stored spec does not fit this version of kvtier; nothing of the pool is changed until it does.",
                "Correct the fields that the message names.",
            ),
            ReasonText(
                Reason.DRAINING,
                "False",
                "The class is being deleted.",
                "Create the pool again in another class, or wait.",
            ),
        ),
    ),
    ConditionText(
        "CachePool",
        ConditionType.DEGRADED,
        "kvtier-operator",
        "Something about the pool or its class needs a person. Nodes that do not serve are the class's matter.",
        (
            ReasonText(
                Reason.TIER_CLASS_NOT_FOUND,
                "True",
                "The TierClass that spec.tierClass names does not exist.",
                "Create it, or create the pool again with another spec.tierClass (it cannot be changed).",
            ),
            ReasonText(
                Reason.NVME_NOT_IN_CLASS,
                "True",
                "spec.quota.nvme is set, but the class has no nvme tier.",
                "Take spec.quota.nvme out, or add spec.tiers.nvme to the class.",
            ),
            ReasonText(
                Reason.QUOTA_EXCEEDS_CAPACITY,
                "True",
                "The quota is above what the class gives each node for that tier; it is granted as far as that goes.",
                "Lower spec.quota, or raise capacityPerNode of the class.",
            ),
            ReasonText(
                Reason.TOO_MANY_POOLS,
                "True",
                "The class has 512 older pools, which is all that a node takes.",
                "Delete pools that are no longer used, or use another class.",
            ),
            ReasonText(Reason.TOO_MANY_ACCOUNTS, "True", _ACCOUNTS, _FEWER_ACCOUNTS),
            ReasonText(
                Reason.INVALID_SPEC,
                "True",
                "The stored spec does not fit this version of kvtier; nothing of the pool is changed until it does.",
                "Correct the fields that the message names.",
            ),
            ReasonText(Reason.AS_EXPECTED, "False", "Nothing needs a person."),
        ),
    ),
    ConditionText(
        "CacheNode",
        ConditionType.PREFLIGHT,
        "kvtier-node",
        "The node has what its class asks for. The message carries the command that mends what is lacking.",
        (
            ReasonText(Reason.PREFLIGHT_PASSED, "True", "Devices, memory and huge pages are there."),
            ReasonText(
                Reason.DEVICE_PATH_MISSING,
                "False",
                "A directory of spec.tiers.nvme.devices is missing.",
                "Mount the disk there, or correct the path in the TierClass.",
            ),
            ReasonText(
                Reason.DEVICE_UNUSABLE,
                "False",
                "A device's path is no directory, is read-only, or has a foreign entry named `kvtier`; or a raw device "
                "is no block device.",
                "Follow the message.",
            ),
            ReasonText(
                Reason.DISK_SPACE_SHORT,
                "False",
                "A device has less free space than its share of the capacity.",
                "Free space, or lower spec.tiers.nvme.capacityPerNode of the TierClass.",
            ),
            ReasonText(
                Reason.HUGE_PAGES_MISSING,
                "False",
                "The node has fewer huge pages than the DRAM tier asks for.",
                "Reserve them: `sysctl vm.nr_hugepages=N` for 2Mi, the kernel's command line for 1Gi.",
            ),
            ReasonText(
                Reason.ARENA_UNAVAILABLE,
                "False",
                "The memory file system of the DRAM tier cannot be mounted.",
                "Follow the message, which carries the kernel's error.",
            ),
            ReasonText(
                Reason.DEVICE_MISSING,
                "False",
                "A raw block device is not there. The store runs without it, and takes it as soon as it appears.",
                "Attach the disk, or correct the name in the TierClass; `ls -l /dev/disk/by-id` shows which there are.",
            ),
            ReasonText(
                Reason.DEVICE_IN_USE,
                "False",
                "A raw block device is mounted, a part of another device, or another program has it.",
                "Follow the message; kvtier needs the whole device, and takes it once it is free.",
            ),
            ReasonText(
                Reason.DEVICE_NOT_BLANK,
                "False",
                "A raw block device holds something that is not kvtier's; it is left alone.",
                _BLANK_IT,
            ),
            ReasonText(
                Reason.DEVICE_READ_ONLY,
                "False",
                "A raw block device refuses writes.",
                "Allow them: `blockdev --setrw DEVICE`. A disk that stays read-only is worn out: replace it.",
            ),
        ),
    ),
    ConditionText(
        "CacheNode",
        ConditionType.READY,
        "kvtier-store",
        "The store has recovered and serves every pool of the spec.",
        (
            ReasonText(Reason.SERVING, "True", "It serves."),
            ReasonText(Reason.STARTING, "False", "The store has started and not yet read its spec.", "Wait for it."),
            ReasonText(Reason.RECOVERING, "False", "The store reads what its predecessor left.", "Wait for it."),
            ReasonText(
                Reason.NODE_AGENT_UNAVAILABLE,
                "False",
                "The store is not connected to kvtier-node, so that pods cannot reach it.",
                "Check the kvtier-node pod of this node.",
            ),
            ReasonText(Reason.DRAINING, "False", "spec.drain is set: the store takes no connection.", "Wait for it."),
            ReasonText(
                Reason.STORE_STOPPED,
                "False",
                "The store has ended.",
                "It comes back by itself; if not, read the logs of its pod.",
            ),
        ),
    ),
    ConditionText(
        "CacheNode",
        ConditionType.DEGRADED,
        "kvtier-store",
        "The store serves, but with less than its class asks for.",
        (
            *_device_reasons("True"),
            ReasonText(Reason.AS_EXPECTED, "False", "All devices are in use, with direct I/O."),
        ),
    ),
    ConditionText(
        "CacheNode",
        ConditionType.DRAINED,
        "kvtier-store",
        "No pod uses the store, and all writes are on the devices.",
        (
            ReasonText(Reason.FLUSHED, "True", "The store is closed and flushed."),
            ReasonText(Reason.FLUSHING, "False", "Connections are being closed, writes are being flushed.", "Wait."),
            ReasonText(Reason.NOT_DRAINING, "False", "spec.drain is not set."),
        ),
    ),
    ConditionText(
        "CacheNode",
        ConditionType.RELEASED,
        "kvtier-node",
        "Nothing of kvtier is left on the node for this class: no arena, no mount, no folder on a device.",
        (
            ReasonText(Reason.NOTHING_LEFT, "True", "All is removed."),
            ReasonText(Reason.IN_USE, "False", "The node is in use, or its store has not left yet."),
            ReasonText(
                Reason.RELEASE_BLOCKED,
                "False",
                "Something could not be removed; the message carries the path and the system's error.",
                "Follow the message; it is tried again.",
            ),
        ),
    ),
)


def remedy(kind: str, condition: ConditionType, reason: Reason) -> str:
    """What to do about a reason of that condition. Raises StopIteration for one that is not listed there."""
    listed = next(text for text in CONDITIONS if (text.kind, text.type) == (kind, condition))
    return next(text.remedy for text in listed.reasons if text.reason is reason)
