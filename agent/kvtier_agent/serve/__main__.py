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
from collections.abc import Sequence
from pathlib import Path

from kvtier_agent.config import ConfigError, StoreConfig, load_config
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.http import serving_http


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
    except (ConfigError, OSError) as error:
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
        from kvtier_agent.serve.cluster import report  # without a cluster none of it is needed

        await report(attendant, config.tier_class)


if __name__ == "__main__":
    sys.exit(main())
