"""The attendant process: talks to the cluster and serves health and metrics, so that the index need not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvtier_agent.control import SetPools, Snapshot, ToStore

from .channel import Channel
from .log import log

_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STEADY_S: Final = 60.0
_END_S: Final = 2.0

ATTENDANT: Final = (sys.executable, "-m", "kvtier_agent.serve")


class Attendant:
    """Runs the attendant and starts it again when it ends. Event loop thread only."""

    def __init__(
        self, config_path: Path, on_pools: Callable[[SetPools], None], command: Sequence[str] = ATTENDANT
    ) -> None:
        """`--control-fd` and `--config` are added to `command`."""
        self._command, self._config_path, self._on_pools = command, config_path, on_pools
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[ToStore] | None = None
        self._ended = asyncio.Event()

    def send(self, snapshot: Snapshot) -> None:
        """Tell it the state, if it runs."""
        if self._channel is not None:
            self._channel.send(snapshot)

    async def run(self) -> None:
        """Keep it running until cancelled; then end it."""
        loop = asyncio.get_running_loop()
        attempts = 0
        try:
            while True:
                started = loop.time()
                self._ended.clear()
                self._spawn()
                await self._ended.wait()
                code = await self._stop()
                attempts = 0 if loop.time() - started > _STEADY_S else attempts
                delay = _BACKOFF_S[min(attempts, len(_BACKOFF_S) - 1)]
                attempts += 1
                log("attendant.ended", code=code, restart_s=delay)
                await asyncio.sleep(delay)
        finally:
            await self._stop()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, "--control-fd", str(theirs.fileno()), "--config", str(self._config_path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._channel = Channel(ours, ToStore, self._on_pools, self._closed)

    def _closed(self, _: str) -> None:
        self._channel = None
        self._ended.set()

    async def _stop(self) -> int | None:
        """Close the connection, which ends it, and kill what does not end; its exit code."""
        if self._channel is not None:
            self._channel.close("closing")
        process, self._process = self._process, None
        if process is None:
            return None
        loop = asyncio.get_running_loop()
        kill_at, give_up_at = loop.time() + _END_S, loop.time() + 2 * _END_S
        while process.poll() is None and loop.time() < give_up_at:
            if loop.time() >= kill_at:
                process.kill()
            await asyncio.sleep(0.02)
        return process.poll()
