"""The store's attendant process: HTTP pages, and in a cluster the CacheNode.

Started by the store with one end of a socket pair; ends when the store closes the other.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from kvtier_agent.cachenode import CacheNodeClient, NotInCluster
from kvtier_agent.config import ConfigError, StoreConfig, load_config
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.http import serving_http
from kvtier_agent.serve.reporter import Reporter


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the control socket closes."""
    parser = argparse.ArgumentParser(prog="python -m kvtier_agent.serve", description="The store's attendant.")
    parser.add_argument("--control-fd", type=int, required=True, help="descriptor of the socket to the store")
    parser.add_argument("--config", type=Path, required=True, help="the store's configuration file")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("KVTIER_LOG_LEVEL", "info").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # the store gets them too, and ends this by its socket
        signal.signal(number, signal.SIG_IGN)
    try:
        with socket.socket(fileno=options.control_fd) as control:
            asyncio.run(run(control, load_config(options.config)))
    except (ConfigError, NotInCluster, OSError) as error:
        logging.error("the attendant cannot serve: %s", error)
        return 1
    return 0


async def run(control: socket.socket, config: StoreConfig) -> None:
    """All of the attendant, until the store closes its end."""
    attendant = Attendant(control)
    async with serving_http(config.http, attendant):
        if config.node_socket is None or config.tier_class is None:
            await attendant.listen()
            return
        async with CacheNodeClient.in_cluster(os.environ.get("NODE_NAME")) as api:
            reporter = Reporter(api, attendant, config.tier_class)
            await _until_first(attendant.listen(), reporter.watch(), reporter.report())
            await reporter.say_goodbye()


async def _until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Until the first of them ends; the others are cancelled. Raises what the ended one raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
