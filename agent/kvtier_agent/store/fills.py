"""Which slots of a pool are being filled: since when."""

from __future__ import annotations

import time


class Fills:
    """Copies and reads into slots that are under way, by when their slots were taken. Event loop thread only."""

    def __init__(self) -> None:
        self._begun: list[int] = []

    def begin(self) -> int:
        """Slots were just taken: now, CLOCK_MONOTONIC in nanoseconds. `end` follows once no mover fills them."""
        self._begun.append(time.monotonic_ns())
        return self._begun[-1]

    def end(self, begun: int) -> None:
        """These slots are committed, or never will be."""
        self._begun.remove(begun)

    def oldest(self) -> int:
        """When the oldest that is under way was begun; now, if none is."""
        return self._begun[0] if self._begun else time.monotonic_ns()
