"""What the attendant knows: the store's latest snapshot, how old it is, and the way to tell the store."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from kvtier_client.protocol.frames import FrameDecoder, encode_frame

from kvtier_agent.control import SetPools, Snapshot

log = logging.getLogger(__name__)

STARTUP_S = 60.0
"""How long a store may take to send its first snapshot."""
STALE_S = 15.0
"""A snapshot comes every second; after this long without one the store hangs."""


class Attendant:
    """One end of the control socket. Event loop only."""

    def __init__(self, control: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._heard_s = clock()
        self._told: SetPools | None = None
        self.snapshot: Snapshot | None = None
        self.news = asyncio.Event()
        """Set with every snapshot; whoever waits for it clears it."""
        control.setblocking(False)

    async def listen(self) -> None:
        """Take snapshots until the store closes its end. Raises FrameError, OSError."""
        decoder: FrameDecoder[Snapshot] = FrameDecoder(Snapshot)
        while data := await asyncio.get_running_loop().sock_recv(self._control, 1 << 16):
            for snapshot in decoder.feed(data):
                self.snapshot = snapshot
                self._heard_s = self._clock()
                self.news.set()

    async def tell(self, pools: SetPools) -> None:
        """The store knows `pools`; said once. Raises OSError when the store is gone."""
        if pools != self._told:
            log.info("generation %d: %d pools, drain %s", pools.generation, len(pools.pools), pools.drain)
            await asyncio.get_running_loop().sock_sendall(self._control, encode_frame(pools))
            self._told = pools

    def silent_s(self) -> float:
        """Seconds since the store last spoke, or since the start."""
        return self._clock() - self._heard_s

    def snapshot_age_s(self) -> float:
        """Seconds since the snapshot was taken; without one, since the start."""
        return self._clock() - self.snapshot.taken_s if self.snapshot else self.silent_s()

    def fault(self) -> str | None:
        """Why the store must be taken for hung; None when it is alive."""
        limit_s = STALE_S if self.snapshot else STARTUP_S
        if self.silent_s() > limit_s:
            return f"the store has been silent for {self.silent_s():.0f} s; it is allowed {limit_s:.0f} s"
        return None
