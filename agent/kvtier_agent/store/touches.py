"""Last uses of pages, kept in their slots' headers for a successor: collected here, written by movers now and then."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from . import jobs
from .core import Core, Pool, unix_now
from .errors import JobFailed
from .log import log
from .movers import Priority

_FLUSH_S: Final = 5.0
_MOST_BYTES: Final = 512 << 10
"""Of one job; what comes beyond before it is done is left out."""


class Touches:
    """Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._places: defaultdict[str, list[bytes]] = defaultdict(list)
        self._bytes: defaultdict[str, int] = defaultdict(int)

    def add(self, pool: Pool, places: bytes) -> None:
        """These pages were used now: `places.PLACE` records. Returns at once."""
        if self._bytes[pool.uid] + len(places) <= _MOST_BYTES:
            self._places[pool.uid].append(places)
            self._bytes[pool.uid] += len(places)

    async def run(self) -> None:
        """Write them every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            places, self._places = self._places, defaultdict(list)
            self._bytes.clear()
            for uid, parts in places.items():
                job = jobs.Touch(self._core.movers.next_id(), uid, b"".join(parts), int(unix_now()))
                try:
                    await self._core.movers.run(job, Priority.TOUCH)
                except JobFailed as error:
                    log("touch.failed", pool=uid, error=error)
