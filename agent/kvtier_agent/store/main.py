"""kvtier-store: the process that holds the index and the sockets."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from kvtier_agent.config import ConfigError, StoreConfig, load_config

from .anew import VARIABLE, Anew, parse_count
from .errors import StoreError
from .log import log
from .service import Service

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Entry point. Exit code 0 after SIGTERM, 1 when the store cannot start, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="kvtier-store", description="Keeps KV-cache blocks in DRAM and on NVMe.")
    parser.add_argument("--config", type=Path, required=True, help="the YAML file; see docs/install.md")
    path = parser.parse_args().config
    try:
        config = load_config(path)
    except ConfigError as error:
        log("config.refused", error=error)
        return 2
    _raise_descriptor_limit()
    anew = Anew(parse_count(os.environ.get(VARIABLE, "")), time.monotonic())
    try:
        if uvloop.run(_run(config, path, anew)):
            os.environ[VARIABLE] = str(anew.count(time.monotonic()))
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - no shell is wanted
    except (StoreError, OSError) as error:
        log("store.failed", error=error)
        return 1
    return 0


async def _run(config: StoreConfig, path: Path, anew: Anew) -> bool:
    """Whether the store is to start anew. A signal that comes after that is left to the next one."""
    stop = asyncio.Event()
    for number in _STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    again = await Service(config, path, anew).run(stop)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    return again and not stop.is_set()


def _raise_descriptor_limit() -> None:
    """Connections and chunks take descriptors: use all that the process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
