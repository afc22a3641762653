"""Starts the store with another attendant command: `run_store.py CONFIG COMMAND...`."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import uvloop
from kvtier_agent.config import load_config
from kvtier_agent.store.anew import Anew
from kvtier_agent.store.errors import StoreError
from kvtier_agent.store.log import log
from kvtier_agent.store.service import Service


async def run(path: Path, attendant: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Service(load_config(path), path, Anew(0, time.monotonic()), None, attendant).run(stop)


if __name__ == "__main__":
    try:
        uvloop.run(run(Path(sys.argv[1]), sys.argv[2:]))
    except (StoreError, OSError) as error:
        log("store.failed", error=error)
        sys.exit(1)
