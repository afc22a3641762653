"""Buffers that comparisons copy into, and memcpy itself."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kvtier_bench.machine import last_level_cache_bytes

MIB: Final = 1 << 20
Bytes = npt.NDArray[np.uint8]

_libc: Final = ctypes.CDLL(None)
_libc.memcpy.restype = ctypes.c_void_p
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def working_set_bytes(batch_bytes: int) -> int:
    """At least four times the last-level cache and four batches, in whole batches."""
    wanted = max(4 * last_level_cache_bytes(), 4 * batch_bytes)
    return -(-wanted // batch_bytes) * batch_bytes


def touched_memory(size: int) -> Bytes:
    """Page-aligned private memory, each page of which this process has written."""
    memory = np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8)
    memory.fill(1)
    return memory


def make_random_file(path: Path, size: int, seed: int = 1) -> None:
    """Write `size` random bytes, which no zero page or compression can help."""
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        for offset in range(0, size, 16 * MIB):
            file.write(rng.bytes(min(16 * MIB, size - offset)))


def mapped_file(path: Path) -> Bytes:
    """The file's bytes, read-only, each page of which this process has read."""
    with path.open("rb") as file:
        memory = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)
    consume(memory)
    return memory


def consume(memory: Bytes) -> int:
    """A number that depends on every byte of `memory`, whose size is a multiple of 8."""
    return int(np.bitwise_xor.reduce(memory.view(np.uint64)))


class Copier:
    """memcpy of many pages, shared out among threads. Not thread-safe."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="memcpy")

    def copy(self, destinations: Sequence[int], sources: Sequence[int], size: int) -> float:
        """Copy `size` bytes from each of `sources` to its destination (addresses); the seconds it took."""
        pairs = list(zip(destinations, sources, strict=True))
        shares = [pairs[number :: self._threads] for number in range(self._threads)]
        began = time.perf_counter()
        if self._threads == 1:
            _copy_all(pairs, size)
        else:
            list(self._executor.map(_copy_all, shares, [size] * self._threads))
        return time.perf_counter() - began


def _copy_all(pairs: Sequence[tuple[int, int]], size: int) -> None:
    for destination, source in pairs:
        _libc.memcpy(destination, source, size)


def address_of(view: memoryview | Bytes) -> int:
    """Where the bytes lie in this process."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
