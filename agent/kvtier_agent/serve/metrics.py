"""Prometheus metrics, made from the latest snapshot whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvtier_agent.control import DEVICE_STATES, READABLE, DeviceSnapshot, PoolSnapshot, Snapshot, TierUse
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
    "pages_lost_dram": ("pages_lost", "dram", "Pages whose checksum or read failed; each was a miss."),
    "chunks_lost": ("chunks_lost", None, "Chunks of DRAM that could not be taken over or went missing."),
    "requests_read_nvme": ("read_requests", "nvme", "Requests in which pages were read from devices."),
    "bytes_cleaned_nvme": ("cleaned_bytes", "nvme", "Bytes that the cleaner moved."),
    "blocks_expired": ("expired_blocks", None, "Blocks that were deleted because their time was over."),
    "blocks_deleted": ("deleted_blocks", None, "Blocks that were deleted by request."),
    "blocks_not_offered": ("unoffered_blocks", None, "Blocks found that were slower to restore than to compute."),
    "blocks_without_room": ("blocks_without_room", None, "Blocks below DRAM for which a get found no room."),
    "blocks_late": ("blocks_late", None, "Blocks below DRAM that a get lost or had not by its deadline."),
    "puts": ("puts", None, "Puts that were answered, refusals among them."),
    "puts_refused": ("puts_refused", None, "Puts that were refused and stored nothing."),
}
"""By the store's counter: metric (`kvtier_` before, `_total` after), tier, help."""

DEVICE_COUNTERS: Final = {
    "reads": "Read requests to the nvme device.",
    "read_bytes": "Bytes read from the nvme device.",
    "writes": "Write requests to the nvme device.",
    "written_bytes": "Bytes written to the nvme device.",
    "errors": "Requests that the nvme device answered with an error.",
    "late": "Requests that the nvme device answered after their deadline.",
}
POOL_GAUGES: Final = {
    "runs_per_chain": "Contiguous runs on nvme of the chains that were read in the last ten minutes, on average.",
    "bytes_per_request": "Bytes of a read request to a device in the last ten minutes, on average.",
    "pinned_bytes": "Bytes of pages that are pinned.",
    "breakeven_blocks": "Blocks found on nvme that a restore must have at least to pay.",
}
ADOPTION: Final = {
    "chunks_adopted": "Chunks of DRAM that the store took over from its predecessor.",
    "pages_adopted": "Pages of DRAM that the store took over from its predecessor.",
    "bytes_adopted": "Bytes of pages that the store took over from its predecessor.",
    "slots_discarded": "Slots of the predecessor that were empty, torn or no longer wanted.",
    "segments_sealed": "Segments that were recovered from their summary.",
    "segments_scanned": "Segments that were recovered by reading them.",
    "pages_recovered": "Pages on nvme that the store found at its start.",
    "seconds": "How long the start took until every pool was served.",
}

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
        age = "Seconds since the store said what these metrics tell, or since the start."
        yield _gauge("snapshot_age_seconds", age, [], [([], self._attendant.snapshot_age_s())])
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
    yield from _device_metrics(snapshot.devices)
    for figure, amount in snapshot.adoption.items():
        meaning = ADOPTION.get(figure, f"The store's figure {figure} of its start.")
        yield _gauge(f"adoption_{figure}", meaning, [], [([], amount)])


def _device_metrics(devices: Sequence[DeviceSnapshot]) -> Iterator[Metric]:
    in_use = [([device.name], device.state in READABLE) for device in devices]
    yield _gauge("device_in_use", "1 when the nvme device is read, 0 while it is out of use.", ["device"], in_use)
    states = [([device.name, state], device.state == state) for device in devices for state in DEVICE_STATES]
    yield _gauge("device_state", "1 for the state that the nvme device is in.", ["device", "state"], states)
    direct = [([device.name], device.direct_io) for device in devices]
    yield _gauge("device_direct_io", "1 when the device takes direct I/O.", ["device"], direct)
    opened = [device for device in devices if device.capacity_bytes]
    capacity = [([device.name], device.capacity_bytes) for device in opened]
    yield _gauge("device_capacity_bytes", "What may be taken of the nvme device.", ["device"], capacity)
    used = [([device.name], device.used_bytes) for device in opened]
    yield _gauge("device_used_bytes", "What is taken of the nvme device.", ["device"], used)
    for counter, help_text in DEVICE_COUNTERS.items():
        family = CounterMetricFamily(f"kvtier_device_{counter}", help_text, labels=["device"])
        for device in devices:
            if counter in device.counters:
                family.add_metric([device.name], device.counters[counter])
        yield family


def _pool_gauges(pools: tuple[PoolSnapshot, ...]) -> Iterator[Metric]:
    for name, help_text, value in _TIER_GAUGES:
        samples = [([_label(pool), tier], value(use)) for pool in pools for tier, use in pool.tiers.items()]
        yield _gauge(f"pool_{name}", f"{help_text}, by the pool.", ["pool", "tier"], samples)
    blocks = [([_label(pool)], pool.blocks) for pool in pools]
    yield _gauge("pool_blocks", "Blocks that the pool holds.", ["pool"], blocks)
    connections = [([_label(pool)], pool.connections) for pool in pools]
    for gauge in sorted({name for pool in pools for name in pool.gauges}):
        figures = [([_label(pool)], pool.gauges[gauge]) for pool in pools if gauge in pool.gauges]
        yield _gauge(f"pool_{gauge}", POOL_GAUGES.get(gauge, f"The store's figure {gauge}."), ["pool"], figures)
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
