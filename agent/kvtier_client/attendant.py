"""What a client does between calls: look after idle connections, and fill page tables of new chunks."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

from .arena import ChunkMappings
from .pool import ConnectionPool

TEND_EVERY_S: Final = 0.2
NICENESS: Final = 10


class Attendant:
    """One daemon thread, started when there is something to look after. It ends with its client."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def wake(self) -> None:
        """There is something to do at once. Does not block."""
        self._wake.set()

    def attend(self, pool: ConnectionPool, mappings: ChunkMappings) -> None:
        """From now on look after these, as long as someone else refers to them. May be repeated."""
        if self._thread is not None:
            return
        with self._start:
            if self._thread is None and not self._ended:
                references = weakref.ref(pool), weakref.ref(mappings)
                self._thread = threading.Thread(
                    target=_attend, args=(self, *references), name="kvtier-attendant", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        """Let the thread end. May be repeated."""
        with self._start:
            self._ended = True
        self._wake.set()

    def pause(self) -> bool:
        """Wait for the next thing to do; False: it is over."""
        self._wake.wait(TEND_EVERY_S)
        self._wake.clear()
        return not self._ended


def _attend(
    attendant: Attendant, pool_ref: weakref.ref[ConnectionPool], mappings_ref: weakref.ref[ChunkMappings]
) -> None:
    # Of this thread alone: page tables are filled when nobody needs the processor.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    while attendant.pause():
        pool, mappings = pool_ref(), mappings_ref()
        if pool is None or mappings is None:
            return
        pool.tend()
        mappings.populate()
        del pool, mappings
