"""What the store process and its attendant process (`serve/`) say to each other.

A socket pair between parent (the store) and child (the attendant), frames of the wire protocol. The
attendant tells which pools the node serves; the store sends a Snapshot every second and after a change.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec


class ServiceAccount(msgspec.Struct, frozen=True):
    """A granted identity. name `*` grants every service account of the namespace."""

    namespace: str
    name: str


class PoolGrant(msgspec.Struct, frozen=True):
    """A pool that this node serves, and to whom."""

    uid: str
    namespace: str
    name: str
    dram_quota: int
    """Bytes on this node."""
    nvme_quota: int
    service_accounts: tuple[ServiceAccount, ...]
    eviction: str = "default"
    """`default` or `lru`."""
    write: str = "through"
    """To nvme: `through` as blocks are stored, or `back` before they leave dram."""
    admission: str = "all"
    """To nvme: `all` blocks, or those of chains that were `reused` or grew."""
    ttl_s: int = 0
    """Seconds that a block is kept at most; 0: no limit."""
    restore: str = "auto"
    """`auto` or `always`."""


class SetPools(msgspec.Struct, frozen=True, tag="set_pools"):
    """The whole truth: pools not named here are purged, connections without a grant are ended."""

    generation: int
    """Of the CacheNode; echoed in Snapshot once acted on."""
    pools: tuple[PoolGrant, ...]
    drain: bool = False
    """Close every connection, take no new one, and report `drained` when all writes are flushed."""


class TierUse(msgspec.Struct, frozen=True):
    """A tier, or a pool's part of it."""

    capacity_bytes: int
    used_bytes: int
    pages: int


class PoolSnapshot(msgspec.Struct, frozen=True):
    """One pool's figures. Counters grow from the store's start."""

    uid: str
    namespace: str
    name: str
    tiers: dict[str, TierUse]
    blocks: int
    connections: int
    recent_asked: int
    """Blocks asked for in lookups of the last ten minutes."""
    recent_hit: int
    counters: dict[str, int]
    """By metric name without prefix: lookups, blocks_asked, blocks_hit, pages_read_dram, pages_read_nvme,
    bytes_read_dram, bytes_read_nvme, bytes_read_nvme_direct, requests_read_nvme, pages_stored, bytes_stored,
    pages_written_nvme, bytes_written_nvme, bytes_cleaned_nvme, pages_evicted_dram, pages_evicted_nvme, pages_lost_dram,
    pages_lost_nvme, chunks_lost, blocks_deleted, blocks_expired, blocks_not_offered, blocks_without_room,
    blocks_late, puts, puts_refused."""
    gauges: dict[str, float] = {}
    """By metric name without prefix: runs_per_chain, bytes_per_request, pinned_bytes, breakeven_blocks. Without what is
    not known (yet)."""


DeviceState = Literal["opening", "ready", "slow", "full", "read_only", "gone", "failed", "refused"]
"""`slow`: late answers. `gone`: it is not there, or no more. `failed`: errors. `refused`: it is there, and its content
or owner forbids its use. `full` and `read_only` are still read; all but `ready` take no new data."""
DEVICE_STATES: Final[tuple[DeviceState, ...]] = get_args(DeviceState)
READABLE: Final[frozenset[DeviceState]] = frozenset({"ready", "full", "read_only"})


class DeviceSnapshot(msgspec.Struct, frozen=True):
    """One device of the configuration."""

    name: str
    state: DeviceState
    message: str = ""
    """What was seen; "" for `ready`."""
    direct_io: bool = True
    capacity_bytes: int = 0
    """Of this device; 0 while it has not been opened."""
    used_bytes: int = 0
    counters: dict[str, int] = {}
    """From the store's start: reads, read_bytes, writes, written_bytes, errors, late."""


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The store's state at one moment."""

    ready: bool
    """Recovered, and serving every pool it knows."""
    message: str
    """Why not ready, or ""."""
    generation: int
    """Of the last SetPools acted on; 0 before the first."""
    drained: bool
    node: str
    """The node that it serves; "" while kvtier-node does not take it."""
    tiers: dict[str, TierUse]
    """Empty before it has recovered."""
    pools: tuple[PoolSnapshot, ...]
    devices: tuple[DeviceSnapshot, ...] = ()
    """In the configuration's order."""
    adoption: dict[str, float] = {}
    """What the start found: chunks_adopted, pages_adopted, bytes_adopted, slots_discarded, segments_sealed,
    segments_scanned, pages_recovered, seconds."""
    taken_s: float = 0.0
    """When, by the machine's CLOCK_MONOTONIC: a busy attendant hears of it later."""


ToStore = SetPools
ToAttendant = Snapshot
