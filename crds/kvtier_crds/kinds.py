"""The kinds of kvtier.io: names, scope, columns of `kubectl get`, and the rules on whole objects.

A row of `kubectl get tierclass,cachepool,cachenode` is at most 120 characters wide for names of ordinary
length: a column more is a column less elsewhere, or one of the wide table (`-o wide`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from kvtier_crds.fields import Model, rule
from kvtier_crds.models import (
    CacheNodeSpec,
    CacheNodeStatus,
    CachePoolSpec,
    CachePoolStatus,
    TierClassSpec,
    TierClassStatus,
)

WIDE: Final = 1


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; `priority` WIDE shows it with `-o wide` only."""

    name: str
    path: str
    description: str
    type: Literal["string", "integer", "date"] = "string"
    priority: int = 0


@dataclass(frozen=True)
class Kind:
    """All that a CRD says beside its schemas."""

    name: str
    plural: str
    short_name: str
    scope: Literal["Cluster", "Namespaced"]
    description: str
    spec: type[Model]
    status: type[Model]
    columns: tuple[Column, ...]
    rules: tuple[dict[str, Any], ...] = ()
    written_by_people: bool = True
    """False: the operator writes its spec from objects that were checked, so it carries no CEL rules."""

    @property
    def singular(self) -> str:
        """The name that `kubectl get` takes."""
        return self.name.lower()


USE: Final = (
    Column("DRAM", ".status.tiers.dram.capacity", "Capacity of the DRAM tier."),
    Column("DRAM-USED", ".status.tiers.dram.used", "Use of the DRAM tier."),
    Column("NVME", ".status.tiers.nvme.capacity", "Capacity of the NVMe tier."),
    Column("NVME-USED", ".status.tiers.nvme.used", "Use of the NVMe tier."),
    Column("HITS", ".status.hitRatio", "Blocks found of blocks asked for in the last ten minutes."),
    Column("READY", '.status.conditions[?(@.type=="Ready")].status', "Whether it serves."),
    Column("AGE", ".metadata.creationTimestamp", "Time since it was created.", type="date"),
    Column("REASON", '.status.conditions[?(@.type=="Ready")].reason', "Why it is ready or not.", priority=WIDE),
    Column("MESSAGE", '.status.conditions[?(@.type=="Ready")].message', "The same, in words.", priority=WIDE),
)
CLASS: Final = Column("CLASS", ".spec.tierClass", "The TierClass.")

TIER_CLASS: Final = Kind(
    name="TierClass",
    plural="tierclasses",
    short_name="tcl",
    scope="Cluster",
    description="A set of nodes and the cache tiers that each of them gives: how much memory and NVMe space, and "
    "where. kvtier runs a store on every node of the class; a CachePool names the class whose nodes hold it. "
    "Deleting a class empties and cleans its nodes first.",
    spec=TierClassSpec,
    status=TierClassStatus,
    columns=(Column("NODES", ".status.nodes.summary", "Ready and desired nodes."), *USE),
    rules=(
        rule(
            "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
            "metadata.name must have at most 63 characters and no `.`: it becomes part of the names of stores",
        ),
    ),
)
CACHE_POOL: Final = Kind(
    name="CachePool",
    plural="cachepools",
    short_name="cpool",
    scope="Namespaced",
    description="A cache that a set of pods share: one trust domain with one quota. Pods ask for it by name in the "
    "volume of driver csi.kvtier.io. Deleting a pool deletes its blocks everywhere, for good; a new pool of the same "
    "name starts empty.",
    spec=CachePoolSpec,
    status=CachePoolStatus,
    columns=(CLASS, Column("NODES", ".status.nodes", "Nodes that serve it.", type="integer"), *USE),
    rules=(
        rule(
            "self.metadata.name.size() <= 63",
            "metadata.name must have at most 63 characters: it is also used as a label value",
        ),
    ),
)
CACHE_NODE: Final = Kind(
    name="CacheNode",
    plural="cachenodes",
    short_name="cnode",
    scope="Cluster",
    description="One node of a TierClass, under the node's name: what its agent must do, and what it says. Made and "
    "removed by kvtier-operator; read it, do not write it.",
    spec=CacheNodeSpec,
    status=CacheNodeStatus,
    columns=(
        CLASS,
        *USE,
        Column("STORE", ".status.storeVersion", "Version of the running store.", priority=WIDE),
    ),
    written_by_people=False,
)
KINDS: Final = (TIER_CLASS, CACHE_POOL, CACHE_NODE)
