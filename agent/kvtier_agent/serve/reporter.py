"""Between the store and its CacheNode: the spec becomes SetPools, snapshots become the status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from kvtier_crds.names import MANAGER_STORE

from kvtier_agent.cachenode import ApiError, CacheNode, CacheNodeClient
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.pools import decide_pools
from kvtier_agent.serve.status import build_status, stopped_status

log = logging.getLogger(__name__)

FIGURES_S: Final = 5.0
"""Figures alone are written at most this often; a changed condition is written at once."""
RETRY_S: Final = 5.0
FAREWELL_S: Final = 3.0


class Reporter:
    """Event loop only. Does nothing for a node that belongs to another class: its store writes there."""

    def __init__(self, api: CacheNodeClient, attendant: Attendant, tier_class: str) -> None:
        self._api = api
        self._attendant = attendant
        self._tier_class = tier_class
        self._cache_node: CacheNode | None = None
        self._written_s = float("-inf")

    async def watch(self) -> None:
        """Tell the store what to serve, until cancelled. Raises OSError when the store is gone."""
        async for cache_node in self._api.watch():
            pools = decide_pools(cache_node, self._tier_class)
            self._cache_node = cache_node if pools else None
            if pools:
                await self._attendant.tell(pools)
            elif cache_node is not None:
                log.warning("node %s belongs to TierClass %s", cache_node.name, cache_node.spec.tier_class)
            self._attendant.news.set()

    async def report(self) -> None:
        """Write the status as it changes, until cancelled."""
        while True:
            await self._attendant.news.wait()
            self._attendant.news.clear()
            if not await self._report_once():
                await asyncio.sleep(RETRY_S)
                self._attendant.news.set()

    async def say_goodbye(self) -> None:
        """Say that the store has ended, if the API server takes it within FAREWELL_S."""
        if self._cache_node is None:
            return
        now = datetime.now(UTC)
        try:
            async with asyncio.timeout(FAREWELL_S), aclosing(self._api.watch()) as watch:
                present = await anext(watch)  # a report may have been cut short, so what is there now is read first
                if decide_pools(present, self._tier_class) and present:
                    last = build_status(self._attendant.snapshot, present, now)
                    await self._apply(present, stopped_status(last, present, now))
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the store's end is not written: %s", error or type(error).__name__)

    async def _report_once(self) -> bool:
        """Write what changed and may be written now; False: the API server did not take it."""
        cache_node = self._cache_node
        if cache_node is None:
            return True
        status = build_status(self._attendant.snapshot, cache_node, datetime.now(UTC))
        due = time.monotonic() - self._written_s >= FIGURES_S
        if not decide_write(status, cache_node.status, figures_due=due):
            return True
        try:
            await self._apply(cache_node, status)
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, ApiError) and error.is_conflict:
                return True  # the watch brings the newer object, and with it the next report
            log.warning("the status is not written: %s", error or type(error).__name__)
            return False
        return True

    async def _apply(self, cache_node: CacheNode, status: Mapping[str, Any]) -> None:
        applied = await self._api.apply_status(cache_node, MANAGER_STORE, status)
        self._written_s = time.monotonic()
        if self._cache_node is cache_node:
            self._cache_node = applied


def decide_write(wanted: Mapping[str, Any], present: Mapping[str, Any], *, figures_due: bool) -> bool:
    """Whether `wanted` is to be written over `present` now. Pure.

    A new status or reason of a condition is; new figures and texts when they are due. Other writers' conditions in
    `present` do not count.
    """
    conditions = {condition["type"]: condition for condition in present.get("conditions", ())}
    changed = [condition for condition in wanted["conditions"] if conditions.get(condition["type"]) != condition]
    if any(_gist(condition) != _gist(conditions.get(condition["type"], {})) for condition in changed):
        return True
    figures = {name: value for name, value in wanted.items() if name != "conditions"}
    return figures_due and (bool(changed) or any(present.get(name) != value for name, value in figures.items()))


def _gist(condition: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(condition.get(name) for name in ("status", "reason", "observedGeneration"))
