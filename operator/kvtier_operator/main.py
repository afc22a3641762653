"""The operator's process: two kopf operators that watch, one loop that reconciles. It ends when any of them does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from typing import Final

import kopf
from kubernetes.config import ConfigException

from kvtier_operator.apply.api import connect
from kvtier_operator.handlers import watch
from kvtier_operator.loop import Loop
from kvtier_operator.settings import Settings, SettingsError, read_settings

USAGE_ERROR: Final = 2

log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM. Exit status 2: the settings do not suffice; 1: a part failed."""
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(f"kvtier-operator: {error}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("aiohttp.access", "kopf", "urllib3", "kubernetes"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
    try:
        asyncio.run(run(settings))
    except ConfigException as error:
        print(f"kvtier-operator: no way to the API server: {error}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None


async def run(settings: Settings) -> None:
    """Watch and reconcile until told to end, or until one part does. There is nothing to put away."""
    loop = Loop(connect(), settings)
    await loop.wait_until_served()
    ready = asyncio.Event(), asyncio.Event()
    parts = [
        asyncio.create_task(loop.run(), name="loop"),
        asyncio.create_task(_watch_cluster(loop, settings, ready[0]), name="watch cluster"),
        asyncio.create_task(_watch_release(loop, settings, ready[1]), name="watch release"),
        asyncio.create_task(_ended(ready), name="signals"),
    ]
    done, rest = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    for part in rest:
        part.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for part in done:
        part.result()


async def _ended(watching: tuple[asyncio.Event, ...]) -> None:
    """Return at SIGTERM or SIGINT.

    Each kopf operator sets its own handlers as it starts, and waits seconds for the tasks of the other one; so
    ours are set after theirs.
    """
    for ready in watching:
        await ready.wait()
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    await end.wait()


async def _watch_cluster(loop: Loop, settings: Settings, ready: asyncio.Event) -> None:
    await kopf.operator(
        registry=watch.registry(loop.cache, release_namespace=False, ailment=loop.ailment),
        settings=watch.settings(),
        clusterwide=True,
        standalone=True,
        liveness_endpoint=settings.health_endpoint,
        ready_flag=ready,
    )


async def _watch_release(loop: Loop, settings: Settings, ready: asyncio.Event) -> None:
    await kopf.operator(
        registry=watch.registry(loop.cache, release_namespace=True, ailment=loop.ailment),
        settings=watch.settings(),
        namespaces=[settings.namespace],
        standalone=True,
        ready_flag=ready,
    )
