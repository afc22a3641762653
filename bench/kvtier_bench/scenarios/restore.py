"""Restore from nvme: long chains that lie on the device alone, beside fio reading as much in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach

from kvtier_bench import kernel
from kvtier_bench.context import Context, Scenario
from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.fio import Disk, Reading, lay_down
from kvtier_bench.memory import MIB, Bytes, touched_memory
from kvtier_bench.stats import Timings, median
from kvtier_bench.store import Store, one_pool
from kvtier_bench.tracing import reads_of, traced
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

PAGE_BYTES: Final = MIB
CHAIN_PAGES: Final = 256
CHAIN_BYTES: Final = PAGE_BYTES * CHAIN_PAGES
CHAINS: Final = 6
READINGS: Final = (Reading(4 * MIB, 4), Reading(8 * MIB, 2), Reading(16 * MIB, 2))
"""What a store may be doing; the fastest of them is the limit."""


def run(context: Context) -> Iterator[Figure]:
    """Read each chain once from nvme, fio taking turns; then copy out of nvme and out of DRAM."""
    chains = context.scaled(CHAINS, 2)
    context.need_disk((chains + 2) * CHAIN_BYTES * 2)
    context.need_memory((chains + 2) * CHAIN_BYTES)
    spec = one_pool((chains + 1) * CHAIN_BYTES, 2 * chains * CHAIN_BYTES, (context.disk / "media",))
    payloads = Payloads(PAGE_BYTES)
    with context.store(spec) as store:
        store.start()
        store.wait_ready()
        with store.client() as client:
            for chain in range(chains):
                store_flushed(client, payloads, chain_hashes(chain, CHAIN_PAGES))
        yield from _beside_fio(context, store, chains)
        yield from _overlap(store, payloads, chains)


def store_flushed(client: Client, payloads: Payloads, hashes: list[bytes]) -> None:
    """Put a chain and wait until it is on the device.

    Raises CannotRun.
    """
    stored = client.put(LAYOUT, None, payloads.pages(hashes), reach=Reach.FLUSHED)
    if stored.reached is not Reach.FLUSHED:
        raise CannotRun(f"a put reached only {stored.reached}; misses: {dict(client.misses)}")


def timed_get(client: Client, hashes: list[bytes]) -> float:
    """Seconds until all pages of the chain are held in DRAM.

    Raises CannotRun when one is missing.
    """
    began = time.perf_counter()
    held = client.get(LAYOUT, hashes)
    seconds = time.perf_counter() - began
    held.release()
    if held.blocks != len(hashes):
        raise CannotRun(f"only {held.blocks} of {len(hashes)} pages came; misses: {dict(client.misses)}")
    return seconds


def _beside_fio(context: Context, store: Store, chains: int) -> Iterator[Figure]:
    disk = Disk()
    file = context.disk / "plain"
    lay_down(file, CHAIN_BYTES)
    store.restart_cold()
    ours: list[float] = []
    plain: dict[Reading, list[float]] = {reading: [] for reading in READINGS}
    with store.client() as client:
        yield _requests(context, store, client, chain_hashes(0, CHAIN_PAGES))
    for _ in range(2):
        store.restart_cold()
        with store.client() as client:
            for chain in range(chains):
                for reading, taken in plain.items():
                    taken.append(disk.read(file, reading))
                ours.append(timed_get(client, chain_hashes(chain, CHAIN_PAGES)))
    best = min(plain, key=lambda reading: median(plain[reading]))
    limit = median(plain[best])
    others = "; ".join(f"{CHAIN_BYTES / median(taken) / 1e9:.2f} GB/s {reading}" for reading, taken in plain.items())
    speed = CHAIN_BYTES / median(ours) / 1e9
    yield Figure(
        "nvme_vs_fio",
        "restore of 256 MiB from nvme, against the disk",
        limit / median(ours),
        "x",
        f"{speed:.2f} GB/s; {disk.name}: {others}",
    )
    yield Figure("nvme_gb_s", "restore of 256 MiB from nvme", speed, "GB/s")
    yield Figure("nvme_ms_p99", "the slowest of them", Timings(tuple(ours)).p99 * 1e3, "ms")


def _requests(context: Context, store: Store, client: Client, hashes: list[bytes]) -> Figure:
    """How large the store's reads are, and what the kernel makes of them."""
    log = context.disk / "reads.trace"
    before = kernel.read_device_io(context.disk)
    with traced(store, log):
        timed_get(client, hashes)
    device = _difference(before, context.disk)
    reads = reads_of(log, context.disk / "media")
    if not reads:
        raise CannotRun("strace saw no read of the media")
    mib = sum(read.size for read in reads) / len(reads) / MIB
    smallest = min(read.size for read in reads) / MIB
    beside = f"{len(reads)} requests of the store, the smallest {smallest:.2f} MiB; {device}"
    return Figure("nvme_mib_per_request", "restore of 256 MiB: mean size of the store's requests", mib, "MiB", beside)


def _difference(before: kernel.DeviceIo | None, folder: Path) -> str:
    after = kernel.read_device_io(folder)
    if before is None or after is None:
        return "the kernel counts no requests of this file system's device"
    moved = after - before
    mib = moved.read_bytes / max(1, moved.read_requests) / MIB
    return f"the device was asked {moved.read_requests} times, {mib:.2f} MiB each"


def _overlap(store: Store, payloads: Payloads, chains: int) -> Iterator[Figure]:
    """Chains in turn: read only, then copied out of DRAM; or read and copied out at once. Then the other way round."""
    destination = touched_memory(CHAIN_BYTES)
    buffers = list(destination.reshape(CHAIN_PAGES, PAGE_BYTES))
    reads, copies, both = [], [], []
    for turn in range(3):
        store.restart_cold()
        with store.client() as client:
            for chain in range(chains):
                hashes = chain_hashes(chain, CHAIN_PAGES)
                if (chain + turn) % 2:
                    both.append(_timed_copy(client, hashes, buffers))
                else:
                    reads.append(timed_get(client, hashes))
                    copies.append(_timed_copy(client, hashes, buffers))
                if payloads.wrong(hashes, [page.data for page in buffers]):
                    raise CannotRun("a restored page has other bytes than were put")
                destination.fill(0)
    read, copy, total = median(reads), median(copies), median(both)
    yield Figure(
        "restore_overlap",
        "read and copied out, against the larger of the two",
        total / max(read, copy),
        "x",
        f"{total * 1e3:.0f} ms; read alone {read * 1e3:.0f} ms, copy alone {copy * 1e3:.0f} ms",
    )


def _timed_copy(client: Client, hashes: list[bytes], buffers: Sequence[Bytes]) -> float:
    began = time.perf_counter()
    restored = client.get_into(LAYOUT, hashes, buffers)
    seconds = time.perf_counter() - began
    if restored.blocks != len(hashes):
        raise CannotRun(f"only {restored.blocks} of {len(hashes)} pages came; misses: {dict(client.misses)}")
    return seconds


SCENARIO: Final = Scenario(
    "restore",
    "from nvme, beside fio",
    ("nvme_vs_fio", "nvme_gb_s", "nvme_ms_p99", "nvme_mib_per_request", "restore_overlap"),
    run,
)
