"""Figures of the native index: memory, lookups, puts and recovery.

python agent/native/benches/index_figures.py [BLOCKS]     # 1,000,000 unless said otherwise; memory is measured with 5 x

KVTIER_POLICY=lru measures the other policy. Prints one line per figure, times of the processor. Chains of 1,024 blocks,
one page each, are grown 16 blocks at a time in random order, so that a chain's blocks do not lie next to each other in
the index either.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvtier_index import Index

LAYOUT = b"L" * 32
KEY = (0, 0, 0)
SLOT = 4096
POLICY = os.environ.get("KVTIER_POLICY", "default")
CHAIN = 1024
PUT = 16
CHUNK_SLOTS = 8000
ENTRY = struct.Struct("<64s64s16s16sQIIIIIIHHBB2x")


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def hash_of(chain: int, block: int) -> bytes:
    """The hash of a block of a chain."""
    return hashlib.blake2b(chain.to_bytes(4, "little") + block.to_bytes(4, "little"), digest_size=32).digest()


def median_us(call: Callable[[], object], times: int = 51) -> float:
    """Median time of a call."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        call()
        took.append(time.thread_time() - began)
    return statistics.median(took) * 1e6


def fill(index: Index, blocks: int, on_nvme: bool) -> list[float]:
    """Store so many blocks; the seconds that reserve and commit took, per page, of each put."""
    for chunk in range(-(-blocks // CHUNK_SLOTS)):
        index.add_chunk(chunk + 1, SLOT, CHUNK_SLOTS, 1 << 20, 4104, 512, b"")
    dice = random.Random(1)
    at = [0] * (blocks // CHAIN)
    growing = list(range(len(at)))
    took = []
    number = 0
    while growing:
        which = dice.randrange(len(growing))
        chain = growing[which]
        first = at[chain]
        if first + PUT == CHAIN:
            growing[which] = growing[-1]
            growing.pop()
        at[chain] += PUT
        pages = [(hash_of(chain, block), *KEY, SLOT) for block in range(first, first + PUT)]
        parent = hash_of(chain, first - 1) if first else None
        began = time.thread_time()
        taken, _, _ = index.reserve(LAYOUT, parent, pages, 0, PUT, 1.0, 1 << 40)
        numbers = [page for _, page in taken]
        index.commit(numbers, b"d" * 16 * PUT)
        if number % 16 == 0:
            took.append((time.thread_time() - began) / PUT)
        if on_nvme:
            index.dirty(numbers)
            index.written(numbers, number // 1000, [SLOT * (number % 1000 * PUT + page) for page in range(PUT)])
        number += 1
    return took


def measure_memory(blocks: int, on_nvme: bool) -> None:
    """Bytes per block, in DRAM alone or in both tiers. In a process of its own."""
    before = rss_bytes()
    index = Index(POLICY)
    fill(index, blocks, on_nvme)
    of_process = (rss_bytes() - before) / index.blocks
    said = index.index_bytes() / index.blocks
    print(f"memory, {index.blocks} blocks, {'both tiers' if on_nvme else 'dram'}: {of_process:.1f} bytes a block "
          f"(by its own count {said:.1f})")  # fmt: skip


def measure_calls(blocks: int) -> None:
    """Lookups of 2,048 hashes, and puts."""
    index = Index(POLICY)
    took = fill(index, blocks, on_nvme=False)
    print(f"reserve and commit: {statistics.median(took) * 1e6:.2f} us a page in puts of {PUT}, "
          f"p99 {sorted(took)[len(took) * 99 // 100] * 1e6:.2f} us")  # fmt: skip
    index.add_chunk(1 << 20, SLOT, 2048, 1 << 20, 4104, 512, b"")
    last = hash_of(0, CHAIN - 1)
    tail = [hash_of(1 << 30, block) for block in range(CHAIN)]
    pages = [(hash_, *KEY, SLOT) for hash_ in tail]
    taken, _, _ = index.reserve(LAYOUT, last, pages, 0, CHAIN, 1.0, 1 << 40)
    index.commit([page for _, page in taken], b"d" * 16 * CHAIN)
    whole = [hash_of(0, block) for block in range(CHAIN)] + tail
    none = [hash_of(1 << 31, block) for block in range(2 * CHAIN)]
    for name, hashes in (("full", whole), ("half", whole[:CHAIN] + none[:CHAIN]), ("no", none)):
        found = index.find(LAYOUT, hashes, [KEY])[0]
        print(f"find of {len(hashes)} hashes among {index.blocks} blocks, {name} match ({found}): "
              f"{median_us(lambda: index.find(LAYOUT, hashes, [KEY])):.0f} us")  # noqa: B023 # fmt: skip
    print(f"hold and release of 2048 blocks: "
          f"{median_us(lambda: index.hold(LAYOUT, whole, [KEY], 1.0).release()):.0f} us")  # fmt: skip


def measure_recovery(pages: int) -> None:
    """Staging and linking of pages that lie on nvme."""
    index = Index(POLICY)
    entries = []
    for number in range(pages):
        chain, block = number // CHAIN, number % CHAIN
        above = hash_of(chain, block - 1) if block else b""
        numbers = (0, number % 16000, SLOT, 1, 0, 0, block, 0, 0, 32, len(above))
        entries.append(ENTRY.pack(hash_of(chain, block), above, b"d" * 16, b"", *numbers))
    random.Random(1).shuffle(entries)
    parts = [b"".join(entries[at : at + 16000]) for at in range(0, pages, 16000)]
    began = time.thread_time()
    for segment, part in enumerate(parts):
        index.stage_entries(segment, part, LAYOUT)
    staged = time.thread_time()
    longest = 0.0
    done = False
    while not done:
        step = time.thread_time()
        done = index.link(1000)
        longest = max(longest, time.thread_time() - step)
    ended = time.thread_time()
    print(f"recovery of {pages} entries in random order: staged in {staged - began:.2f} s, "
          f"linked in {ended - staged:.2f} s (longest of its slices {longest * 1e3:.1f} ms), "
          f"{index.blocks} blocks")  # fmt: skip


def main() -> None:
    """Measure all."""
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for measure in (measure_calls, measure_recovery):
        alone(measure, blocks)
    for on_nvme in (False, True):
        alone(measure_memory, 5 * blocks, on_nvme)


def alone(measure: Callable[..., None], *arguments: object) -> None:
    """Measure in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=measure, args=arguments)
    process.start()
    process.join()


if __name__ == "__main__":
    main()
