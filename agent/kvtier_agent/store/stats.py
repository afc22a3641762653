"""Figures over time: the recent hit ratio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

_BUCKET_S: Final = 10.0
_BUCKETS: Final = 60
"""Ten minutes."""

COUNTERS: Final = (
    "lookups",
    "blocks_asked",
    "blocks_hit",
    "pages_read_dram",
    "pages_read_nvme",
    "bytes_read_dram",
    "bytes_read_nvme",
    "bytes_read_nvme_direct",
    "pages_stored",
    "bytes_stored",
    "pages_written_nvme",
    "bytes_written_nvme",
    "pages_evicted_dram",
    "pages_evicted_nvme",
    "pages_lost_dram",
    "pages_lost_nvme",
    "chunks_lost",
    "puts",
    "puts_refused",
)
"""Of every pool, from the store's start."""


class HitWindow:
    """Blocks asked for and found in the last ten minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, never going back."""
        self._clock = clock
        self._buckets: deque[tuple[int, int, int]] = deque()

    def count(self, asked: int, hit: int) -> None:
        """One lookup."""
        bucket = self._forget()
        if self._buckets and self._buckets[-1][0] == bucket:
            _, before_asked, before_hit = self._buckets.pop()
            asked, hit = asked + before_asked, hit + before_hit
        self._buckets.append((bucket, asked, hit))

    def totals(self) -> tuple[int, int]:
        """Blocks asked for, blocks found."""
        self._forget()
        return sum(it[1] for it in self._buckets), sum(it[2] for it in self._buckets)

    def _forget(self) -> int:
        bucket = int(self._clock() / _BUCKET_S)
        while self._buckets and self._buckets[0][0] <= bucket - _BUCKETS:
            self._buckets.popleft()
        return bucket
