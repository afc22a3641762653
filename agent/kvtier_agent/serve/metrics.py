"""Prometheus metrics, made from the latest snapshot whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvtier_agent.control import PoolSnapshot, Snapshot, TierUse
from kvtier_agent.serve.attendant import Attendant

COUNTERS: Final[dict[str, tuple[str, str | None, str]]] = {
    "lookups": ("lookups", None, "Lookups and gets that were answered."),
    "blocks_asked": ("blocks_asked", None, "Blocks that clients asked for."),
    "blocks_hit": ("blocks_hit", None, "Of the blocks asked for, those that were whole here."),
    "pages_read_dram": ("pages_read", "dram", "Pages that were given to clients, by the tier they lay in."),
    "pages_read_nvme": ("pages_read", "nvme", "Pages that were given to clients, by the tier they lay in."),
    "bytes_read_dram": ("read_bytes", "dram", "Bytes of pages that were given to clients, by the tier they lay in."),
    "bytes_read_nvme": ("read_bytes", "nvme", "Bytes of pages that were given to clients, by the tier they lay in."),
    "bytes_read_nvme_direct": ("direct_read_bytes", "nvme", "Bytes read from devices by direct I/O."),
    "pages_stored": ("pages_stored", None, "Pages that puts stored."),
    "bytes_stored": ("stored_bytes", None, "Bytes of pages that puts stored."),
    "pages_written_nvme": ("pages_written", "nvme", "Pages written to a device."),
    "bytes_written_nvme": ("written_bytes", "nvme", "Bytes written to a device."),
    "pages_evicted_dram": ("pages_evicted", "dram", "Pages dropped from a tier to make room."),
    "pages_evicted_nvme": ("pages_evicted", "nvme", "Pages dropped from a tier to make room."),
    "pages_lost_nvme": ("pages_lost", "nvme", "Pages whose checksum or read failed; each was a miss."),
    "puts": ("puts", None, "Puts that were answered, refusals among them."),
    "puts_refused": ("puts_refused", None, "Puts that were refused and stored nothing."),
}
"""By the store's counter: metric (`kvtier_` before, `_total` after), tier, help."""

_TIER_GAUGES: Final[tuple[tuple[str, str, Callable[[TierUse], int]], ...]] = (
    ("capacity_bytes", "What may be taken of a tier", lambda use: use.capacity_bytes),
    ("used_bytes", "What is taken of a tier", lambda use: use.used_bytes),
    ("pages", "Pages in a tier", lambda use: use.pages),
)


class SnapshotCollector:
    """A collector of prometheus_client. Any thread."""

    def __init__(self, attendant: Attendant) -> None:
        self._attendant = attendant

    def collect(self) -> Iterator[Metric]:
        """Every metric; without a snapshot, only those that need none."""
        snapshot = self._attendant.snapshot
        yield _gauge("build", "The running release.", ["version"], [([version("kvtier")], 1)], suffix="_info")
        silent = "Seconds since the store last spoke to the process that serves these metrics."
        yield _gauge("snapshot_age_seconds", silent, [], [([], self._attendant.silent_s())])
        ready = snapshot is not None and snapshot.ready
        yield _gauge("ready", "1 when the store has recovered and serves every pool it knows.", [], [([], ready)])
        if snapshot is not None:
            yield from _node_metrics(snapshot)
            yield from _pool_gauges(snapshot.pools)
            yield from _pool_counters(snapshot.pools)


def _node_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge("drained", "1 when the store is closed and flushed.", [], [([], snapshot.drained)])
    for name, help_text, value in _TIER_GAUGES:
        samples = [([tier], value(use)) for tier, use in snapshot.tiers.items()]
        yield _gauge(f"tier_{name}", f"{help_text}, over all pools of the node.", ["tier"], samples)
    devices = sorted({*snapshot.direct_io, *snapshot.device_errors})
    in_use = [([name], name not in snapshot.device_errors) for name in devices]
    yield _gauge("device_in_use", "1 when the nvme device is in use, 0 after errors.", ["device"], in_use)
    direct = [([name], snapshot.direct_io.get(name, False)) for name in devices]
    yield _gauge("device_direct_io", "1 when the device's file system takes direct I/O.", ["device"], direct)


def _pool_gauges(pools: tuple[PoolSnapshot, ...]) -> Iterator[Metric]:
    for name, help_text, value in _TIER_GAUGES:
        samples = [([_label(pool), tier], value(use)) for pool in pools for tier, use in pool.tiers.items()]
        yield _gauge(f"pool_{name}", f"{help_text}, by the pool.", ["pool", "tier"], samples)
    blocks = [([_label(pool)], pool.blocks) for pool in pools]
    yield _gauge("pool_blocks", "Blocks that the pool holds.", ["pool"], blocks)
    connections = [([_label(pool)], pool.connections) for pool in pools]
    yield _gauge("pool_connections", "Open connections of pods to the pool.", ["pool"], connections)


def _pool_counters(pools: tuple[PoolSnapshot, ...]) -> Iterator[Metric]:
    families: dict[str, CounterMetricFamily] = {}
    for pool in pools:
        for counter, value in pool.counters.items():
            name, tier, help_text = COUNTERS.get(counter, (counter, None, f"The store's counter {counter}."))
            labels = ["pool"] if tier is None else ["pool", "tier"]
            family = families.setdefault(name, CounterMetricFamily(f"kvtier_{name}", help_text, labels=labels))
            family.add_metric([_label(pool)] if tier is None else [_label(pool), tier], value)
    yield from families.values()


def _gauge(
    name: str, help_text: str, labels: list[str], samples: Sequence[tuple[list[str], float]], suffix: str = ""
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"kvtier_{name}{suffix}", help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, float(value))
    return family


def _label(pool: PoolSnapshot) -> str:
    return f"{pool.namespace}/{pool.name}"
