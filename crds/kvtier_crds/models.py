"""The resources of kvtier.io/v1alpha1 as pydantic models, the one source of the CRD YAML.

Field descriptions are the reference that `kubectl explain` and docs/resources.md show. CEL rules stand
beside the field or model they guard and are checked by the API server. Names, columns and rules of the
kinds themselves are in `kinds`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from kvtier_crds.fields import (
    ATOMIC,
    LABEL_KEY_PATTERN,
    AccountName,
    BlockDevice,
    Count,
    DevicePath,
    DnsLabel,
    Duration,
    LabelValue,
    Model,
    Quantity,
    Size,
    at_least,
    map_list,
    rule,
    rules,
)

HIT_RATIO = (
    "Blocks found, of all blocks that clients asked for in the last ten minutes, as a percentage such as `87%`. "
    "`-`: none was asked for."
)
OBSERVED_GENERATION = "The metadata.generation that this status describes. Smaller than it: a change is not yet seen."


class HugePages(StrEnum):
    """Page size of the arena."""

    NONE = "none"
    SIZE_2MI = "2Mi"
    SIZE_1GI = "1Gi"


class Initialize(StrEnum):
    """What is done with a raw device that holds something else."""

    IF_BLANK = "IfBlank"
    ALWAYS = "Always"


class EvictionPolicy(StrEnum):
    """What leaves a full tier first."""

    DEFAULT = "default"
    LRU = "lru"


class NvmeWrite(StrEnum):
    """When blocks are written to nvme."""

    THROUGH = "through"
    BACK = "back"


class NvmeAdmission(StrEnum):
    """Which blocks are written to nvme."""

    ALL = "all"
    REUSED = "reused"


class Restore(StrEnum):
    """Which of a pool's blocks below DRAM are offered."""

    AUTO = "auto"
    ALWAYS = "always"


class Condition(Model):
    """One aspect of the state, in the shape of metav1.Condition."""

    type: str = Field(
        max_length=316,
        pattern=r"^[A-Za-z][A-Za-z0-9]*$",
        description="Name of the aspect, such as Ready. The list is in docs/resources.md.",
    )
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the aspect holds. Unknown: whoever writes it cannot tell."
    )
    reason: str = Field(
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="One word for the cause, stable for programs.",
    )
    message: str = Field(max_length=32768, description="The cause in one sentence, and what to do about it.")
    last_transition_time: datetime = Field(description="When `status` last changed; other changes leave it alone.")
    observed_generation: Count | None = Field(
        default=None, description="The metadata.generation that was judged. Left out: judged apart from the spec."
    )


# ---------------------------------------------------------------------------------- TierClass


class DramTier(Model):
    """The DRAM tier of a class."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.hugePages == 'none' || !isQuantity(self.capacityPerNode) || "
                # isInteger() is false of 1.5Gi, so the number goes through a double: exact below 8 PiB.
                "int(quantity(self.capacityPerNode).asApproximateFloat()) % "
                "(self.hugePages == '1Gi' ? 1073741824 : 2097152) == 0",
                "capacityPerNode must be a multiple of hugePages",
                ".capacityPerNode",
            )
        )
    )

    capacity_per_node: Size = Field(
        description="Memory that the cache takes on each node, in bytes; at least 128Mi, and with huge pages a "
        "multiple of their size. The store's pod requests it, with what the index and staging need on top, so a node "
        "without that much room gets no store (condition Degraded, reason NoRoom). A change restarts the store, one "
        "node after the other; it keeps its blocks as far as they fit.",
        json_schema_extra=at_least("128Mi", "capacityPerNode"),
    )
    huge_pages: HugePages = Field(
        default=HugePages.NONE,
        description="Page size that backs the cache. `none`: ordinary pages. `2Mi` and `1Gi` must be reserved on the "
        "node beforehand; the store's pod then requests hugepages-2Mi or hugepages-1Gi in place of memory. It cannot "
        "be changed.",
    )


class NvmeDevice(Model):
    """One place for the NVMe tier on each node."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.path) != has(self.device)", "give either path (a directory) or device (a raw block device)"),
            rule(
                "has(self.device) || self.initialize == 'IfBlank'",
                "initialize is for raw block devices; in a directory kvtier touches its own folder only",
                ".initialize",
            ),
        )
    )

    name: DnsLabel = Field(
        description="Name of the device within the class: a DNS label of at most 63 characters. It is the list's key, "
        "and names the device in status.devices of a CacheNode."
    )
    path: DevicePath | None = Field(
        default=None,
        description="An existing directory on every node of the class, on the file system of an NVMe disk; best one "
        "that takes direct I/O, such as ext4 or xfs. It is never created: where it is missing, the node's condition "
        "Preflight says so. kvtier makes one folder `kvtier` in it and touches nothing else. At most 256 characters. "
        "Left out: `device` is given.",
        json_schema_extra=rules(
            rule("!self.split('/').exists(part, part == '..' || part == '.')", "path must not have `..` or `.` parts")
        ),
    )
    device: BlockDevice | None = Field(
        default=None,
        description="A whole raw block device on every node of the class, by a name that stays with it, which udev "
        "makes of its WWN, NGUID or serial: below `/dev/disk/by-id`, such as `/dev/disk/by-id/nvme-eui.0025384b214`; "
        "or a partition by its label or UUID, below `/dev/disk/by-partlabel` or `/dev/disk/by-partuuid`. A partition "
        "label may be the same on all nodes. kvtier takes all of it, and nothing else may use it. At most 256 "
        "characters. Left out: `path` is given.",
    )
    initialize: Initialize = Field(
        default=Initialize.IF_BLANK,
        description="What is done with a raw block device that holds something other than kvtier's data: with "
        "`IfBlank` it is left alone, and the condition Preflight of the node says how to blank it; with `Always` it is "
        "overwritten, for good. A device that kvtier has used before keeps its blocks either way. A change acts on "
        "devices that are refused at that time.",
    )


class NvmeTier(Model):
    """The NVMe tier of a class."""

    capacity_per_node: Size = Field(
        description="Space that the cache takes on each node, in bytes, over all devices in equal parts; at least "
        "256Mi. A change restarts the store, one node after the other; with less space it evicts what was used "
        "longest ago.",
        json_schema_extra=at_least("256Mi", "capacityPerNode"),
    )
    devices: list[NvmeDevice] = Field(
        min_length=1,
        max_length=32,
        description="The places that hold the tier, at least one and at most 32. Blocks are striped over them. "
        "Devices can be added later; one that the class has keeps its name and its path or device.",
        json_schema_extra=map_list("name")
        | rules(
            rule(
                "self.all(d, !has(d.path) || self.exists_one(e, has(e.path) && e.path == d.path))",
                "each device needs a path of its own",
            ),
            rule(
                "self.all(d, !has(d.device) || self.exists_one(e, has(e.device) && e.device == d.device))",
                "each entry needs a block device of its own",
            ),
        ),
    )


class Tiers(Model):
    """The tiers of a class."""

    dram: DramTier = Field(description="Memory: every block passes through it.")
    nvme: NvmeTier | None = Field(
        default=None,
        description="Local flash, for blocks that no longer fit in DRAM, and across restarts of the node. Left out: "
        "blocks live in DRAM only. It can be added later, not taken out.",
    )


class Toleration(Model):
    """A toleration of the store's pods, as in a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.key) || self.operator == 'Exists'", "a toleration without key needs operator: Exists"),
            rule("!has(self.value) || self.operator == 'Equal'", "a toleration with a value needs operator: Equal"),
            rule(
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                "tolerationSeconds needs effect: NoExecute",
            ),
        )
    )

    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=316,
        description="Taint key. Left out (with operator Exists): every key.",
    )
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal", description="How the taint is compared. `Equal`: key and value. `Exists`: the key alone."
    )
    value: str | None = Field(
        default=None, max_length=63, description="Taint value, for operator Equal. Left out: the empty value."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect. Left out: every effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        description="For effect NoExecute: how many seconds the taint is tolerated. Left out: for ever.",
    )


class TierClassSpec(Model):
    """What a class gives each of its nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.tiers.dram.hugePages == oldSelf.tiers.dram.hugePages",
                "hugePages cannot be changed; create another class with it and delete this one",
                ".tiers.dram.hugePages",
            ),
            rule(
                "!has(oldSelf.tiers.nvme) || has(self.tiers.nvme)",
                "nvme cannot be taken out; create another class without it and delete this one",
                ".tiers.nvme",
            ),
            rule(
                "!has(oldSelf.tiers.nvme) || !has(self.tiers.nvme) || oldSelf.tiers.nvme.devices.all(o, "
                "self.tiers.nvme.devices.exists(d, d.name == o.name && has(d.path) == has(o.path) && "
                "(has(o.path) ? d.path == o.path : d.device == o.device)))",
                "devices can be added, not removed or moved; create another class and delete this one",
                ".tiers.nvme.devices",
            ),
        )
    )

    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Labels of the nodes that get a store, at most 64; a node must carry all of them. Empty or left "
        "out: every Linux node. Where two classes select one node, the class that was created first has it (at the "
        "same second, the first by name). A node that is no longer selected is drained and cleaned.",
        json_schema_extra=rules(
            rule(
                f"self.all(key, key.matches(r'{LABEL_KEY_PATTERN}'))",
                "keys must be label names such as kvtier.io/flash: letters, digits and ._-, with a DNS prefix or none",
            )
        ),
    )
    tiers: Tiers = Field(description="Capacity and media of each tier.")
    tolerations: list[Toleration] = Field(
        default_factory=list,
        max_length=64,
        description="Taints that the store's pods tolerate, at most 64. Left out: only those that every DaemonSet "
        "tolerates. A selected node with another taint gets no store (condition Degraded, reason NodeTainted).",
        json_schema_extra=ATOMIC,
    )


class TierStatus(Model):
    """A tier over all nodes of a class, on one node, or a pool's part of it."""

    capacity: Quantity = Field(description="What may be taken, in bytes; for a pool, its quota.")
    used: Quantity = Field(description="What is taken, in bytes.")


class TierStatuses(Model):
    """Per tier."""

    dram: TierStatus | None = Field(default=None, description="Memory.")
    nvme: TierStatus | None = Field(default=None, description="Local flash. Left out: there is no such tier.")


class NodeCounts(Model):
    """How far a class is rolled out."""

    desired: Count = Field(description="Nodes that the class has: selected, and not another class's.")
    ready: Count = Field(description="Of these, nodes whose store serves.")
    updated: Count = Field(description="Of these, nodes whose store has the current specification.")
    summary: str = Field(max_length=32, description="`ready/desired`, for the table.")


class TierClassStatus(Model):
    """What the class is. Written by kvtier-operator."""

    observed_generation: Count | None = Field(default=None, description=OBSERVED_GENERATION)
    nodes: NodeCounts | None = Field(default=None, description="How many nodes the class has, and how far they are.")
    tiers: TierStatuses | None = Field(default=None, description="Capacity and use, summed over the ready nodes.")
    hit_ratio: str | None = Field(default=None, max_length=8, description=HIT_RATIO)
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Ready, Progressing and Degraded; their reasons are in docs/resources.md.",
        json_schema_extra=map_list("type"),
    )


# ---------------------------------------------------------------------------------- CachePool


class PoolQuota(Model):
    """What a pool may take on each node."""

    dram: Size = Field(
        description="Memory on each node, in bytes; at least 64Mi, and at most what the class gives each node. A "
        "smaller quota evicts the blocks that were used longest ago.",
        json_schema_extra=at_least("64Mi", "quota.dram"),
    )
    nvme: Size | None = Field(
        default=None,
        description="NVMe space on each node, in bytes; at least 128Mi, and at most what the class gives each node. "
        "Left out: the pool's blocks live in DRAM only. Taking it out later deletes what the pool has there.",
        json_schema_extra=at_least("128Mi", "quota.nvme"),
    )


class GrantedServiceAccount(Model):
    """An identity whose pods may use the pool."""

    namespace: DnsLabel | None = Field(default=None, description="Its namespace. Left out: the pool's own.")
    name: AccountName = Field(description="Its name. `*`: every service account of the namespace.")


class PoolNvme(Model):
    """How a pool uses the NVMe tier."""

    write: NvmeWrite = Field(
        default=NvmeWrite.THROUGH,
        description="When blocks are written to NVMe. `through`: as they are stored, so that they survive the node's "
        "restart. `back`: when they are about to leave DRAM, which spares the disk what is used only shortly; a "
        "restart of the node loses what is in DRAM only. A change acts on blocks stored after it.",
    )
    admission: NvmeAdmission = Field(
        default=NvmeAdmission.ALL,
        description="Which blocks are written to NVMe. `all`: every block. `reused`: those of prefixes that were asked "
        "for again or grew after they were stored, which spares the disk prompts that never come back; the others are "
        "lost when they leave DRAM. A change acts on blocks not yet written.",
    )


EvictionPolicyField = Annotated[
    EvictionPolicy,
    Field(
        description="Which blocks leave a full tier first. `default`: those least likely to be asked for again soon, "
        "as learned from what this pool's clients ask for. `lru`: those asked for longest ago. Either way the end of a "
        "prefix leaves before its beginning. A change acts from the next start of each node's store on, and drops "
        "nothing by itself."
    ),
]
TtlField = Annotated[
    Duration | None,
    Field(
        description="How long a block is kept after it was stored, such as `36h` or `30m`; at least `1m`. Past that it "
        "is deleted in every tier, with what follows it, used or not. Left out: no limit. A shorter time acts on what "
        "is stored already.",
        json_schema_extra=rules(
            # The pattern is judged apart from this rule; what it refuses must not be an error here.
            rule(
                "!self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') || self == '' || "
                "duration(self) >= duration('1m')",
                "ttl must be at least 1m",
            )
        ),
    ),
]
PoolNvmeField = Annotated[
    PoolNvme | None,
    Field(description="How the pool uses NVMe; it needs quota.nvme. Left out: every block is written as it is stored."),
]
RestoreField = Annotated[
    Restore,
    Field(
        description="What is offered of a prefix that lies below DRAM. `auto`: as much of it as is restored faster "
        "than the engine computes it, by the measured speed of the devices and of the engine. `always`: all of it. A "
        "change acts on the next lookup."
    ),
]


class CachePoolSpec(Model):
    """A cache that a set of pods share: one trust domain, one quota."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.nvme) || has(self.quota.nvme)",
                "nvme needs quota.nvme: without it the pool's blocks live in DRAM only",
                ".nvme",
            )
        )
    )

    tier_class: DnsLabel = Field(
        description="Name of the TierClass whose nodes hold the pool. It need not exist yet. It cannot be changed.",
        json_schema_extra=rules(rule("self == oldSelf", "tierClass cannot be changed; create another pool")),
    )
    quota: PoolQuota = Field(description="What the pool may take on each node of the class.")
    service_accounts: list[GrantedServiceAccount] = Field(
        default_factory=list,
        max_length=256,
        description="Whose pods may use the pool, at most 256 entries. Empty or left out: every service account of "
        "the pool's own namespace. Naming any grants only those named, so name those of the own namespace too. Pods "
        "of an account that is taken out lose their connections within 5 seconds, and where one ran, the pool's "
        "memory is given back: its blocks come from nvme again.",
        json_schema_extra=ATOMIC,
    )
    eviction_policy: EvictionPolicyField = EvictionPolicy.DEFAULT
    ttl: TtlField = None
    nvme: PoolNvmeField = None
    restore: RestoreField = Restore.AUTO


class CachePoolStatus(Model):
    """What the pool is. Written by kvtier-operator."""

    observed_generation: Count | None = Field(default=None, description=OBSERVED_GENERATION)
    nodes: Count | None = Field(default=None, description="How many nodes serve the pool.")
    blocks: Count | None = Field(
        default=None, description="Blocks over all nodes; one that two nodes hold counts twice."
    )
    tiers: TierStatuses | None = Field(default=None, description="Quota and use, summed over the serving nodes.")
    hit_ratio: str | None = Field(default=None, max_length=8, description=HIT_RATIO)
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Ready and Degraded; their reasons are in docs/resources.md.",
        json_schema_extra=map_list("type"),
    )


# ---------------------------------------------------------------------------------- CacheNode


class NodePool(Model):
    """A pool that the node serves, and to whom."""

    uid: str = Field(
        min_length=1, max_length=64, description="UID of the CachePool: a new pool of an old name is another pool."
    )
    namespace: str = Field(max_length=63, description="Namespace of the CachePool.")
    name: str = Field(max_length=63, description="Name of the CachePool.")
    quota: PoolQuota = Field(description="What the pool may take on this node.")
    service_accounts: list[GrantedServiceAccount] = Field(
        max_length=256,
        description="Whose pods may use it, with every namespace filled in.",
        json_schema_extra=ATOMIC,
    )
    eviction_policy: EvictionPolicyField = EvictionPolicy.DEFAULT
    ttl: TtlField = None
    nvme: PoolNvmeField = None
    restore: RestoreField = Restore.AUTO


class CacheNodeSpec(Model):
    """What the agent on this node must do. Written by kvtier-operator only."""

    tier_class: str = Field(
        max_length=63,
        description="Name of the TierClass that has this node; kvtier-node serves only that class's store.",
    )
    tiers: Tiers = Field(description="The tiers of the class, as in its spec.")
    pools: list[NodePool] = Field(
        default_factory=list,
        max_length=512,
        description="Pools to serve, at most 512. The store purges, for good, a pool that is not among them.",
        json_schema_extra=map_list("uid"),
    )
    drain: bool = Field(
        default=False,
        description="End all use, flush all writes, and then remove what kvtier has on the node. Set when the node "
        "leaves its class or the class is deleted; the object goes once the condition Released is True.",
    )


class NodePoolStatus(Model):
    """One pool on this node."""

    uid: str = Field(max_length=64, description="UID of the CachePool.")
    blocks: Count = Field(description="Blocks held on this node.")
    tiers: TierStatuses = Field(description="Quota and use on this node.")
    recent_asked: Count = Field(description="Blocks that clients asked for in the last ten minutes.")
    recent_hit: Count = Field(description="Of these, blocks found.")


class DeviceState(StrEnum):
    """How a device is used."""

    OPENING = "Opening"
    READY = "Ready"
    SLOW = "Slow"
    FULL = "Full"
    READ_ONLY = "ReadOnly"
    GONE = "Gone"
    FAILED = "Failed"
    REFUSED = "Refused"


class DeviceStatus(Model):
    """One nvme device on this node."""

    name: str = Field(max_length=63, description="Name of the device within the class.")
    state: DeviceState = Field(
        description="How it is used. `Ready`: fully. `Opening`: it has not answered yet. `Full` and `ReadOnly`: what "
        "is on it is read, nothing new is written. `Slow`, `Gone`, `Failed` and `Refused`: its blocks are misses until "
        "it answers again, is back, works again, or is mended. What to do is under the condition Degraded."
    )
    message: str | None = Field(
        default=None, max_length=1024, description="What was seen of it. Left out: it is as it should be."
    )
    direct_io: bool = Field(
        description="Whether it takes direct I/O. Where not, reads and writes pass through the page cache."
    )
    capacity: Quantity | None = Field(
        default=None, description="What may be taken of it, in bytes. Left out: it has not been opened."
    )
    used: Quantity | None = Field(default=None, description="What is taken of it, in bytes.")


class CacheNodeStatus(Model):
    """What this node's agent says. kvtier-node writes the conditions Preflight and Released, kvtier-store the rest."""

    observed_generation: Count | None = Field(
        default=None, description="The metadata.generation that the store has acted on."
    )
    tiers: TierStatuses | None = Field(default=None, description="Capacity and use on this node.")
    hit_ratio: str | None = Field(default=None, max_length=8, description=HIT_RATIO)
    pools: list[NodePoolStatus] = Field(
        default_factory=list, max_length=512, description="Figures per pool.", json_schema_extra=map_list("uid")
    )
    devices: list[DeviceStatus] = Field(
        default_factory=list, max_length=32, description="State per nvme device.", json_schema_extra=map_list("name")
    )
    store_version: str | None = Field(default=None, max_length=64, description="Version of the running store.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Preflight, Ready, Degraded, Drained and Released; their reasons are in docs/resources.md.",
        json_schema_extra=map_list("type"),
    )
