"""The resources of kvtier.io/v1alpha1 as pydantic models, the one source of the CRD YAML.

Field descriptions are the reference that `kubectl explain` and docs/resources.md show. CEL rules stand
beside the field or model they guard, in `json_schema_extra`, and are checked by the API server.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of every part of a resource: camelCase in YAML, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32)]
DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]


def rule(expression: str, message: str) -> dict[str, Any]:
    """One CEL validation: what must hold, and what to change when it does not."""
    return {"rule": expression, "message": message}


def rules(*validations: dict[str, Any]) -> dict[str, Any]:
    """`json_schema_extra` that carries CEL validations."""
    return {"x-kubernetes-validations": list(validations)}


def map_list(*keys: str) -> dict[str, Any]:
    """`json_schema_extra` of a list whose entries are known by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


class HugePages(StrEnum):
    """Page size of the arena."""

    NONE = "none"
    SIZE_2MI = "2Mi"
    SIZE_1GI = "1Gi"


class Condition(Model):
    """One aspect of the state, in the shape of metav1.Condition."""

    type: str = Field(max_length=316, description="Name of the aspect, such as Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the aspect holds.")
    reason: str = Field(max_length=1024, description="One word for the cause, stable for programs.")
    message: str = Field(max_length=32768, description="The cause in one sentence, and what to do about it.")
    last_transition_time: datetime = Field(description="When the status last changed.")
    observed_generation: int | None = Field(default=None, description="The generation that this judges.")


# ---------------------------------------------------------------------------------- TierClass


class DramTier(Model):
    """The DRAM tier of a class."""

    capacity_per_node: Quantity = Field(
        description="Memory that the cache takes on each node, counted within the store pod's memory request "
        "(or its huge pages). At least 128Mi. A change restarts the store; it keeps its blocks as far as they fit.",
        json_schema_extra=rules(
            rule("quantity(self).compareTo(quantity('128Mi')) >= 0", "capacityPerNode must be at least 128Mi")
        ),
    )
    huge_pages: HugePages = Field(
        default=HugePages.NONE,
        description="Page size that backs the cache. `none`: ordinary pages. `2Mi` and `1Gi` must be reserved "
        "on the node beforehand; the store pod then requests hugepages-2Mi or hugepages-1Gi.",
    )


class NvmeDevice(Model):
    """One place for the NVMe tier on each node."""

    name: DnsLabel = Field(description="Name of the device within the class.")
    path: str = Field(
        max_length=256,
        description="An existing directory on every node of the class, on the file system of an NVMe disk. It is "
        "never created; kvtier makes one folder `kvtier` in it and touches nothing else.",
        json_schema_extra=rules(
            rule("self.startsWith('/') && self.size() > 1", "path must be absolute, such as /mnt/nvme0"),
            rule("!self.split('/').exists(part, part == '..')", "path must not contain `..`"),
        ),
    )


class NvmeTier(Model):
    """The NVMe tier of a class."""

    capacity_per_node: Quantity = Field(
        description="Space that the cache takes on each node, over all devices in equal parts. At least 256Mi.",
        json_schema_extra=rules(
            rule("quantity(self).compareTo(quantity('256Mi')) >= 0", "capacityPerNode must be at least 256Mi")
        ),
    )
    devices: list[NvmeDevice] = Field(
        min_length=1,
        max_length=32,
        description="The places that hold it.",
        json_schema_extra=map_list("name")
        | rules(
            rule("self.all(d, self.exists_one(e, e.path == d.path))", "each device needs a path of its own"),
        ),
    )


class Tiers(Model):
    """The tiers of a class."""

    dram: DramTier = Field(description="Memory: every block passes through it.")
    nvme: NvmeTier | None = Field(default=None, description="Local flash. Left out: blocks live in DRAM only.")


class Toleration(Model):
    """A toleration of the store's pods, as in a pod."""

    key: str | None = Field(default=None, description="Taint key; left out with operator Exists: every key.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How key and value are compared.")
    value: str | None = Field(default=None, description="Taint value for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Taint effect; left out: every effect."
    )
    toleration_seconds: int | None = Field(default=None, description="With NoExecute: how long it is tolerated.")


class TierClassSpec(Model):
    """What a class gives each of its nodes."""

    node_selector: dict[str, str] = Field(
        default_factory=dict,
        description="Labels of the nodes that get a store. Empty: every Linux node. Where two classes select one "
        "node, the class that was created first has it (at the same second, the first by name).",
    )
    tiers: Tiers = Field(description="Capacity and media.")
    tolerations: list[Toleration] = Field(
        default_factory=list,
        description="Taints that the store's pods tolerate.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class TierStatus(Model):
    """A tier over all nodes of a class, or on one node."""

    capacity: Quantity = Field(description="What the tier may take.")
    used: Quantity = Field(description="What it takes.")


class TierStatuses(Model):
    """Per tier."""

    dram: TierStatus | None = Field(default=None, description="DRAM.")
    nvme: TierStatus | None = Field(default=None, description="Local NVMe.")


class NodeCounts(Model):
    """How far a class is rolled out."""

    desired: int = Field(description="Nodes that the class has: selected, and not another class's.")
    ready: int = Field(description="Of these, nodes whose store serves.")
    updated: int = Field(description="Of these, nodes whose store has the current specification.")
    summary: str = Field(description="ready/desired, for the table.")


class TierClassStatus(Model):
    """What the class is."""

    observed_generation: int | None = Field(default=None, description="The generation that this describes.")
    nodes: NodeCounts | None = Field(default=None, description="Nodes of the class.")
    tiers: TierStatuses | None = Field(default=None, description="Sum over the ready nodes.")
    hit_ratio: str | None = Field(
        default=None,
        description="Blocks found of blocks asked for in the last ten minutes, such as `87%`; `-`: none asked.",
    )
    conditions: list[Condition] = Field(default_factory=list, json_schema_extra=map_list("type"))


# ---------------------------------------------------------------------------------- CachePool


class PoolQuota(Model):
    """What a pool may take on each node."""

    dram: Quantity = Field(
        description="Memory on each node. At least 64Mi.",
        json_schema_extra=rules(
            rule("quantity(self).compareTo(quantity('64Mi')) >= 0", "quota.dram must be at least 64Mi")
        ),
    )
    nvme: Quantity | None = Field(
        default=None,
        description="NVMe space on each node, at least 128Mi. Left out: the pool's blocks live in DRAM only.",
        json_schema_extra=rules(
            rule("quantity(self).compareTo(quantity('128Mi')) >= 0", "quota.nvme must be at least 128Mi")
        ),
    )


class GrantedServiceAccount(Model):
    """An identity whose pods may use the pool."""

    namespace: DnsLabel | None = Field(default=None, description="Its namespace. Default: the pool's.")
    name: str = Field(min_length=1, max_length=253, description="Its name; `*`: every one of the namespace.")


class CachePoolSpec(Model):
    """A cache that a set of pods share: one trust domain, one quota."""

    tier_class: DnsLabel = Field(description="The TierClass whose nodes hold the pool.")
    quota: PoolQuota = Field(description="Its limits per node.")
    service_accounts: list[GrantedServiceAccount] = Field(
        default_factory=list,
        max_length=256,
        description="Whose pods may use the pool. Empty: every service account of the pool's own namespace. Taking "
        "one out ends its pods' connections within 5 seconds.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class CachePoolStatus(Model):
    """What the pool is."""

    observed_generation: int | None = Field(default=None, description="The generation that this describes.")
    nodes: int | None = Field(default=None, description="Nodes that serve the pool.")
    blocks: int | None = Field(default=None, description="Blocks over all nodes.")
    tiers: TierStatuses | None = Field(default=None, description="Quota and use over the serving nodes.")
    hit_ratio: str | None = Field(
        default=None,
        description="Blocks found of blocks asked for in the last ten minutes, such as `87%`; `-`: none asked.",
    )
    conditions: list[Condition] = Field(default_factory=list, json_schema_extra=map_list("type"))


# ---------------------------------------------------------------------------------- CacheNode


class NodePool(Model):
    """A pool that the node serves, and to whom."""

    uid: str = Field(description="UID of the CachePool: a new pool of an old name is another pool.")
    namespace: str = Field(description="Its namespace.")
    name: str = Field(description="Its name.")
    quota: PoolQuota = Field(description="Its limits on this node.")
    service_accounts: list[GrantedServiceAccount] = Field(
        description="Granted identities, namespaces filled in.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )


class CacheNodeSpec(Model):
    """What the agent on this node must do. Written by the operator only."""

    tier_class: str = Field(description="The TierClass that has this node; kvtier-node serves only its store.")
    tiers: Tiers = Field(description="The class's tiers.")
    pools: list[NodePool] = Field(
        default_factory=list, description="Pools to serve.", json_schema_extra=map_list("uid")
    )
    drain: bool = Field(default=False, description="End all use, flush, and then release what is on the node.")


class NodePoolStatus(Model):
    """One pool on this node."""

    uid: str = Field(description="UID of the CachePool.")
    blocks: int = Field(description="Blocks held.")
    tiers: TierStatuses = Field(description="Quota and use.")
    recent_asked: int = Field(description="Blocks asked for in the last ten minutes.")
    recent_hit: int = Field(description="Of these, blocks found.")


class DeviceStatus(Model):
    """One nvme device on this node."""

    name: str = Field(description="Name of the device within the class.")
    direct_io: bool = Field(description="Whether its file system takes direct I/O.")
    error: str | None = Field(default=None, description="Why it is not in use.")


class CacheNodeStatus(Model):
    """What this node's agent says. kvtier-node writes the conditions Preflight and Released, the store the rest."""

    observed_generation: int | None = Field(default=None, description="The generation that the store has acted on.")
    tiers: TierStatuses | None = Field(default=None, description="Capacity and use on this node.")
    hit_ratio: str | None = Field(
        default=None,
        description="Blocks found of blocks asked for in the last ten minutes, such as `87%`; `-`: none asked.",
    )
    pools: list[NodePoolStatus] = Field(
        default_factory=list, description="Per pool.", json_schema_extra=map_list("uid")
    )
    devices: list[DeviceStatus] = Field(
        default_factory=list, description="Per nvme device.", json_schema_extra=map_list("name")
    )
    store_version: str | None = Field(default=None, description="Version of the running store.")
    conditions: list[Condition] = Field(default_factory=list, json_schema_extra=map_list("type"))
