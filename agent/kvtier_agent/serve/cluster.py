"""The attendant's part in a cluster: the node's CacheNode watched, and its status written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

from kvtier_agent.cachenode import CacheNodeClient
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.reporter import Reporter


async def report(attendant: Attendant, tier_class: str) -> None:
    """Until the store closes its end. Raises NotInCluster, OSError."""
    async with CacheNodeClient.in_cluster(os.environ.get("NODE_NAME")) as api:
        reporter = Reporter(api, attendant, tier_class)
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
