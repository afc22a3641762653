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

import msgspec
import uvloop

from kvtier_agent.config import ConfigError, load_config
from kvtier_agent.control import SetPools

from .anew import Anew
from .errors import StoreError
from .log import log
from .service import Service

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_SIGNALS_S: Final = 0.02
_VARIABLE: Final = "KVTIER_HANDED_ON"
"""In the environment of an image that follows another: the descriptor of what it is handed."""


class _HandedOn(msgspec.Struct, frozen=True):
    """From one image of the program to the next."""

    count: int = 0
    """How often in a row the store started itself anew."""
    pools: SetPools | None = None
    """As they were known last: the API server may be away."""


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
    handed_on = _take_over()
    anew = Anew(handed_on.count, time.monotonic())
    service = Service(config, path, anew, handed_on.pools)
    try:
        if uvloop.run(_run(service)):
            _start_anew(_HandedOn(anew.count(), service.pools))
    except (StoreError, OSError) as error:
        log("store.failed", error=error)
        return 1
    return 0


async def _run(service: Service) -> bool:
    """Whether the store is to start anew. A signal that comes from then on is left to the next image."""
    stop = asyncio.Event()
    for number in _STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    again = await service.run(stop)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    await asyncio.sleep(_LAST_SIGNALS_S)  # one that came before is on its way to the handler
    return again and not stop.is_set()


def _take_over() -> _HandedOn:
    """What the store before, in this very process, hands on; nothing at a first start."""
    place = os.environ.pop(_VARIABLE, "")
    if not place:
        return _HandedOn()
    with os.fdopen(int(place), "rb") as file:
        file.seek(0)
        return msgspec.msgpack.decode(file.read(), type=_HandedOn)


def _start_anew(handed_on: _HandedOn) -> None:
    """Go on with a fresh image of the program. Does not return; raises OSError."""
    fd = os.memfd_create("kvtier-handed-on", 0)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(msgspec.msgpack.encode(handed_on))
    os.environ[_VARIABLE] = str(fd)
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - no shell is wanted


def _raise_descriptor_limit() -> None:
    """Connections and chunks take descriptors: use all that the process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
