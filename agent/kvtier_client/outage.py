"""When to try the agent again after failures. Pure but for the jitter."""

from __future__ import annotations

import random
from typing import Final

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0


class Outage:
    """Consecutive failures, and the pause that they call for. Not thread-safe. Times are seconds of one clock.

    One failure calls for none: the agent may just have been replaced, or one caller was impatient.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._failed_at = 0.0
        self._pause_s = 0.0
        self._retry_at = 0.0

    @property
    def ongoing(self) -> bool:
        """Whether the last attempt failed."""
        return self._failures > 0

    def admits(self, now: float) -> bool:
        """Whether a call may be tried; if so, others wait one more pause for its outcome."""
        if now < self._retry_at:
            return False
        if self._pause_s:
            self._retry_at = now + self._pause_s
        return True

    def failed(self, began: float, now: float) -> None:
        """Count the failure of an attempt; attempts that failed together count once."""
        if self._failures and began < self._failed_at:
            return
        self._failures += 1
        self._failed_at = now
        if self._failures > 1:
            longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 2, 16))
            self._pause_s = longest * random.uniform(0.75, 1.0)  # noqa: S311 - spreads retries, guards nothing
            self._retry_at = now + self._pause_s

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures = 0
        self._pause_s = self._retry_at = 0.0
