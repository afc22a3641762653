"""How fast a device is, measured as it is used; and which prefix pays to be restored. Pure.

Times are arguments. Bandwidth is of all requests in flight together: bytes that came back over the time during which
any were in flight.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_HALF_LIFE_S: Final = 1.0
_MIN_BUSY_S: Final = 0.0002
_MIN_BYTES: Final = 256 << 10
"""Smaller requests say how quick a device is, not how fast."""
_MOST_BLOCKS: Final = 1 << 16
"""Of a prompt."""
_STEPS: Final = 16
"""In which a prompt's computing time is summed up."""


class Estimator:
    """Read bandwidth and queue of one device. Not thread-safe."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._busy_s = 0.0
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._since = 0.0
        self._last: float | None = None

    def begun(self, size: int, now: float) -> None:
        """A read was asked for."""
        if size >= _MIN_BYTES:
            self._settle(now)
            self._in_flight += 1
            self._in_flight_bytes += size

    def ended(self, size: int, now: float, *, good: bool = True) -> None:
        """It came back."""
        if size >= _MIN_BYTES:
            self._settle(now)
            self._in_flight -= 1
            self._in_flight_bytes -= size
            self._bytes += size if good else 0

    def bandwidth(self, now: float) -> float | None:
        """Bytes a second; None: not known yet. What is long in flight counts as slow before it is back."""
        self._settle(now)
        if self._busy_s >= _MIN_BUSY_S and (self._bytes or self._last is not None):
            self._last = max(self._bytes, 1.0) / self._busy_s
        return self._last

    def queue_s(self, now: float) -> float:
        """How long a new request waits for those before it."""
        bandwidth = self.bandwidth(now)
        return self._in_flight_bytes / bandwidth if bandwidth else 0.0

    def _settle(self, now: float) -> None:
        """Count busy time up to now, and let what is older fade: after a rest the next reads decide."""
        elapsed = max(0.0, now - self._since)
        self._since = now
        keep = 0.5 ** (elapsed / _HALF_LIFE_S)
        self._bytes *= keep
        self._busy_s = self._busy_s * keep + (elapsed if self._in_flight else 0.0)


@dataclass(frozen=True)
class EngineSpeed:
    """What an engine said of itself (protocol: Report)."""

    block_tokens: int
    bytes_per_token: float
    tokens_per_s: tuple[tuple[int, float], ...]
    """By depth in tokens, rising: prefill speed there."""

    def compute_s(self, start: int, stop: int) -> float:
        """How long the engine computes blocks start..stop of a prompt. Raises nothing; infinite where it cannot."""
        steps = min(stop - start, _STEPS)
        if steps <= 0 or not self.tokens_per_s:
            return math.inf if steps > 0 else 0.0
        tokens = (stop - start) * self.block_tokens / steps
        depths = (start * self.block_tokens + (step + 0.5) * tokens for step in range(steps))
        return sum(tokens / max(_interpolate(self.tokens_per_s, depth), 1e-9) for depth in depths)


def offered_blocks(whole: int, in_dram: int, engine: EngineSpeed, bandwidth: float, queue_s: float) -> int:
    """Of `whole` leading blocks, how many to offer: the prefix whose last block still pays.

    Blocks in DRAM always pay. Restoring the rest takes the queue and their bytes; computing a block takes the longer
    the deeper it stands. So if any of them pays once those before it are there, the last does: all are offered or none.
    """
    takes_s = restore_s(whole - in_dram, engine, bandwidth, queue_s)
    return whole if takes_s < engine.compute_s(in_dram, whole) else in_dram


def restore_s(blocks: int, engine: EngineSpeed, bandwidth: float, queue_s: float) -> float:
    """How long so many blocks take to be restored from nvme, the queue before them included."""
    return queue_s + blocks * engine.block_tokens * engine.bytes_per_token / bandwidth


def breakeven_blocks(engine: EngineSpeed, bandwidth: float, queue_s: float) -> float:
    """The least prefix of which no block is in DRAM that pays to be restored, in blocks; infinite where none does."""

    def pays(blocks: int) -> bool:
        return offered_blocks(blocks, 0, engine, bandwidth, queue_s) == blocks

    if not pays(_MOST_BLOCKS):
        return math.inf
    return 1 + bisect.bisect_left(range(1, _MOST_BLOCKS), True, key=pays)


def _interpolate(points: tuple[tuple[int, float], ...], depth: float) -> float:
    for (low, slow), (high, fast) in pairwise(points):
        if low <= depth <= high:
            return slow + (fast - slow) * (depth - low) / max(high - low, 1)
    return points[0][1] if depth < points[0][0] else points[-1][1]


class Gate:
    """Whether a pool's nvme tier is open to restores, with a share of traffic let through while it is closed."""

    PROBE_EVERY_S: Final = (2.0, 15.0)
    """While closed, one restore in so long is offered, so that its speed stays known; sooner where it is quick."""
    PROBE_SHARE: Final = 0.2
    """Of the time, at most, goes into such restores."""

    def __init__(self) -> None:
        self.closed = False
        self._probe_at = 0.0

    def decide(self, whole: int, offered: int, takes_s: float, now: float) -> int:
        """What to offer; `offered` is what pays by the figures, `takes_s` how long all of it would take by them."""
        was_closed, self.closed = self.closed, offered < whole
        if not self.closed:
            return whole
        due = was_closed and now >= self._probe_at
        if due or not was_closed:
            soonest, latest = self.PROBE_EVERY_S
            self._probe_at = now + min(latest, max(soonest, takes_s / self.PROBE_SHARE))
        return whole if due else offered
