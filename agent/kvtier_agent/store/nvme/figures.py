"""How a pool's chains are read from the devices: figures of the last ten minutes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final

from ..ports import PoolView
from ..refs import decode_refs
from ..stats import Window

_LOOK_EVERY_S: Final = 1.0
"""One chain in so long is looked at whole: what it costs goes with its length."""


class ReadFigures:
    """Of one pool. Event loop thread only."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self._requests, self._runs = Window(clock), Window(clock)
        self._looked_at = -math.inf

    def look(self, pool: PoolView, pages: Sequence[int], now: float) -> None:
        """These pages, the end of a chain, are about to be read."""
        if pages and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            (last,) = decode_refs(pool.index.refs(pages[-1:]))
            self._runs.count(1, pool.index.runs(last.layout, last.hash)[0])

    def read(self, size: int) -> None:
        """A device request of this many bytes came back."""
        self._requests.count(1, size)

    def gauges(self) -> dict[str, float]:
        """runs_per_chain and bytes_per_request, as far as there were any."""
        means = {"runs_per_chain": self._runs, "bytes_per_request": self._requests}
        totals = {name: window.totals() for name, window in means.items()}
        return {name: total / count for name, (count, total) in totals.items() if count}
