"""Statistics of measurements. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that at least `percent` of them do not exceed.

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("a percentile of no values")
    return float(np.percentile(np.asarray(values), percent, method="inverted_cdf"))


def median(values: Sequence[float]) -> float:
    """The middle of `values`.

    Raises ValueError when there are none.
    """
    if not values:
        raise ValueError("a median of no values")
    return float(np.median(np.asarray(values)))


@dataclass(frozen=True)
class Timings:
    """Seconds that repeated calls took, in order."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median, in seconds."""
        return percentile(self.seconds, 50)

    @property
    def p99(self) -> float:
        """In seconds."""
        return percentile(self.seconds, 99)

    def gb_per_s(self, size: int) -> float:
        """At the median, for calls that moved `size` bytes each."""
        return size / self.p50 / 1e9


def interleaved(measures: dict[str, Callable[[int], float]], rounds: int) -> dict[str, Timings]:
    """What each of `measures` returned in each round, taking turns; every second round in the opposite order.

    A measure gets the round's number and returns seconds.
    """
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in list(measures) if number % 2 == 0 else reversed(measures):
            taken[name].append(measures[name](number))
    return {name: Timings(tuple(seconds)) for name, seconds in taken.items()}


def growth(samples: Sequence[float], warm_up: float = 0.2) -> float:
    """How much `samples`, taken at even intervals, rose: from the first to the last quarter after the warm-up.

    Medians of the quarters, so that one odd sample counts nothing. Raises ValueError for fewer than 8 samples.
    """
    kept = list(samples[int(len(samples) * warm_up) :])
    if len(samples) < 8:
        raise ValueError(f"growth needs at least 8 samples, not {len(samples)}")
    quarter = max(1, len(kept) // 4)
    return median(kept[-quarter:]) - median(kept[:quarter])
