"""The node's store as the demo sees it: its counters, its processes, and its sudden end."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dev.demo.report import Reads

PROGRAM = "kvtier-store"


def parse_reads(metrics: str) -> Reads:
    """What the store has read since it started, over all pools, from its metrics page."""
    sums = Counter[tuple[str, str]]()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            sums[sample.name, sample.labels.get("tier", "")] += int(sample.value)
    return Reads(
        {tier: sums["kvtier_pages_read_total", tier] for tier in ("dram", "nvme")},
        sums["kvtier_read_bytes_total", "nvme"],
        sums["kvtier_direct_read_bytes_total", "nvme"],
    )


def reads_between(before: Reads, after: Reads) -> Reads:
    """What was read from `before` to `after`, of one run of the store."""
    return Reads(
        {tier: count - before.pages[tier] for tier, count in after.pages.items()},
        after.nvme_bytes - before.nvme_bytes,
        after.nvme_direct_bytes - before.nvme_direct_bytes,
    )


def find_main_process(pod_uid: str) -> int:
    """The process ID, as this machine counts, of the store's first process in the pod.

    Raises LookupError when the pod runs none.
    """
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _is_main_process(folder, pod_uid):
            return int(folder.name)
    raise LookupError(f"no process of {PROGRAM} runs in the pod {pod_uid}")


def kill_store(pod_uid: str) -> int:
    """End the store of the pod as kill -9 does, and return the process ID that it had. Raises LookupError."""
    process = find_main_process(pod_uid)
    os.kill(process, signal.SIGKILL)
    return process


def _is_main_process(folder: Path, pod_uid: str) -> bool:
    try:
        if pod_uid not in (folder / "cgroup").read_text().replace("_", "-"):
            return False
        ids = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:"))
        return ids.split()[-1] == "1" and PROGRAM.encode() in (folder / "cmdline").read_bytes()
    except OSError:
        return False  # ended meanwhile
