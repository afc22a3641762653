"""Figures over time: names of the counters, and sums of the last ten minutes."""

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
    "requests_read_nvme",
    "pages_stored",
    "bytes_stored",
    "pages_written_nvme",
    "bytes_written_nvme",
    "bytes_cleaned_nvme",
    "pages_evicted_dram",
    "pages_evicted_nvme",
    "pages_lost_dram",
    "pages_lost_nvme",
    "chunks_lost",
    "blocks_deleted",
    "blocks_expired",
    "blocks_not_offered",
    "blocks_without_room",
    "blocks_late",
    "puts",
    "puts_refused",
)
"""Of every pool, from the store's start."""

ADOPTED: Final = ("chunks_adopted", "pages_adopted", "bytes_adopted", "slots_discarded", "pages_recovered")
"""What the start found in the arena and in indexes."""


class Window:
    """Sums of two figures over the last ten minutes, such as blocks asked for and found."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, never going back."""
        self._clock = clock
        self._buckets: deque[tuple[int, int, int]] = deque()

    def count(self, first: int, second: int) -> None:
        """Add to both."""
        bucket = self._forget()
        if self._buckets and self._buckets[-1][0] == bucket:
            _, before_first, before_second = self._buckets.pop()
            first, second = first + before_first, second + before_second
        self._buckets.append((bucket, first, second))

    def totals(self) -> tuple[int, int]:
        """Both sums."""
        self._forget()
        return sum(it[1] for it in self._buckets), sum(it[2] for it in self._buckets)

    def _forget(self) -> int:
        bucket = int(self._clock() / _BUCKET_S)
        while self._buckets and self._buckets[0][0] <= bucket - _BUCKETS:
            self._buckets.popleft()
        return bucket
