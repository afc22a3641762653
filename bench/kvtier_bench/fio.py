"""What the disk gives without us: fio, or an equal loop of plain reads where fio cannot be had."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvtier_bench import environment
from kvtier_bench.figures import CannotRun
from kvtier_bench.memory import MIB


@dataclass(frozen=True)
class Reading:
    """How a file is read, past the page cache."""

    request_bytes: int
    depth: int
    """Requests in flight."""
    shuffled: bool = False

    def __str__(self) -> str:
        order = "random" if self.shuffled else "sequential"
        return f"{order}, {self.request_bytes >> 10} KiB, {self.depth} in flight"


class Disk:
    """Reads files at the disk's own speed. Not thread-safe."""

    def __init__(self) -> None:
        """Uses fio if it is there or can be installed."""
        try:
            self._fio: str | None = environment.program("fio", "fio")
        except CannotRun:
            self._fio = None

    @property
    def name(self) -> str:
        """What the figures are to be called."""
        return "fio" if self._fio else "plain reads in threads (no fio here)"

    def read(self, file: Path, reading: Reading) -> float:
        """Read the whole file once; the seconds it took.

        Raises CannotRun.
        """
        if self._fio:
            return read_by_fio(self._fio, file, reading)
        return read_plainly(file, reading)


def read_by_fio(program: str, file: Path, reading: Reading) -> float:
    """The seconds of reading, without fio's own start.

    Raises CannotRun.
    """
    command = [
        program,
        "--name=read",
        f"--filename={file}",
        f"--rw={'randread' if reading.shuffled else 'read'}",
        f"--bs={reading.request_bytes}",
        f"--iodepth={reading.depth}",
        "--direct=1",
        "--ioengine=libaio",
        f"--size={file.stat().st_size}",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise CannotRun(f"fio: {done.stderr.strip()[-300:]}")
    return parse_fio_seconds(done.stdout)


def parse_fio_seconds(text: str) -> float:
    """Seconds of the only job's reads, of fio's JSON.

    Raises ValueError when it read nothing.
    """
    job: dict[str, Any] = json.loads(text[text.index("{") :])["jobs"][0]["read"]
    if not job["io_bytes"] or not job["bw_bytes"]:
        raise ValueError("fio read nothing")
    return float(job["io_bytes"]) / float(job["bw_bytes"])


def read_plainly(file: Path, reading: Reading) -> float:
    """The same with preadv in as many threads as requests in flight, each into memory of its own."""
    size = file.stat().st_size
    offsets = list(range(0, size - size % reading.request_bytes, reading.request_bytes))
    if reading.shuffled:
        random.Random(1).shuffle(offsets)
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        buffers = [mmap.mmap(-1, reading.request_bytes) for _ in range(reading.depth)]

        def read_share(number: int) -> None:
            for offset in offsets[number :: reading.depth]:
                os.preadv(descriptor, [buffers[number]], offset)

        with ThreadPoolExecutor(reading.depth) as executor:
            began = time.perf_counter()
            list(executor.map(read_share, range(reading.depth)))
            return time.perf_counter() - began
    finally:
        os.close(descriptor)


def lay_down(file: Path, size: int) -> None:
    """A file of `size` random bytes on the disk, not in the page cache."""
    rng = np.random.default_rng(3)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(descriptor, 0, size)
        piece = mmap.mmap(-1, 16 * MIB)
        for offset in range(0, size, 16 * MIB):
            piece.seek(0)
            piece.write(rng.bytes(16 * MIB))
            os.pwritev(descriptor, [memoryview(piece)[: min(16 * MIB, size - offset)]], offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
