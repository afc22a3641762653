"""Keeps the node as its CacheNode says: prepared for the store, or released. Writes what came of it.

One pass looks at the node, decides, acts and reports; a pass follows every change and a pause, so
that a mended path is noticed and an interrupted pass is finished by the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp
from kvtier_crds.conditions import ConditionType, Reason
from kvtier_crds.names import MANAGER_NODE
from kvtier_crds.words import Verdict

from kvtier_agent.cachenode import ApiError, CacheNode, CacheNodeClient
from kvtier_agent.conditions import to_conditions
from kvtier_agent.config import parse_quantity
from kvtier_agent.node.arena import ensure_arena, remove_arena
from kvtier_agent.node.devices import Devices
from kvtier_agent.node.preflight import can_start, decide_preflight, raw_devices
from kvtier_agent.node.store_link import StoreLink

log = logging.getLogger(__name__)

RECHECK_FAILING_S: Final = 10.0
RECHECK_S: Final = 60.0
STORE_ABSENT_S: Final = 15.0
"""How long no store must have been there before a node is released whose store did not report the drain:
longer than a store that lost its connection takes to come back."""
FLUSHED_ABSENT_S: Final = 2.0
"""The same, when it did, or when its last word was that it has ended."""


@dataclass(frozen=True)
class ArenaPlace:
    """Where the arena is on the node."""

    mount: Path
    store_folder: str
    store_uid: int


class Keeper:
    """Event loop only; what blocks runs in a thread, one pass at a time."""

    def __init__(
        self, *, node: str, link: StoreLink, devices: Devices, arena: ArenaPlace, api: CacheNodeClient, class_file: Path
    ) -> None:
        """`class_file` remembers the node's TierClass, so that a restart without API server serves its store."""
        self._node = node
        self._link = link
        self._devices = devices
        self._arena = arena
        self._api = api
        self._class_file = class_file
        self._cache_node: CacheNode | None = None
        self._changed = asyncio.Event()
        self._store_left_s = time.monotonic()
        link.on_change = self._store_came_or_went
        if class_file.exists():
            link.serve_class(class_file.read_text())

    async def watch(self) -> None:
        """Follow the CacheNode, until cancelled."""
        async for cache_node in self._api.watch():
            self._cache_node = cache_node
            self._direct_link(cache_node)
            self._changed.set()

    async def keep(self) -> None:
        """Pass after pass, until cancelled."""
        while True:
            self._changed.clear()
            pause_s = await self._pass(self._cache_node) if self._cache_node else RECHECK_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _pass(self, cache_node: CacheNode) -> float:
        """Act and report once; returns the pause before the next pass, in seconds."""
        if cache_node.spec.drain:
            absent_s = 0.0 if self._link.connected else time.monotonic() - self._store_left_s
            released = decide_release_wait(cache_node, absent_s, connected=self._link.connected)
            if released is None:
                released = await asyncio.to_thread(self._release, cache_node)
            verdicts = [released]
            pause_s = RECHECK_S if released.status == "True" else FLUSHED_ABSENT_S
        else:
            preflight = await asyncio.to_thread(self._prepare, cache_node)
            in_use = f"node {self._node} belongs to TierClass {cache_node.spec.tier_class}"
            verdicts = [preflight, Verdict(ConditionType.RELEASED, "False", Reason.IN_USE, in_use)]
            pause_s = RECHECK_S if preflight.status == "True" else RECHECK_FAILING_S
        return pause_s if await self._report(cache_node, verdicts) else min(pause_s, RECHECK_FAILING_S)

    def _prepare(self, cache_node: CacheNode) -> Verdict:
        """The node has all that the store needs, or the verdict says what it lacks. Blocks."""
        spec, dram = cache_node.spec, cache_node.spec.tiers.dram
        reason = Reason.DEVICE_UNUSABLE
        try:
            facts = self._devices.fetch_facts(spec, self._link.held_devices)
            verdict = decide_preflight(self._node, spec, facts)
            if not can_start(self._node, spec, facts):
                return verdict
            reason = Reason.ARENA_UNAVAILABLE
            arena, capacity = self._arena, parse_quantity(dram.capacity_per_node)
            ensure_arena(arena.mount, arena.store_folder, capacity, dram.huge_pages, arena.store_uid)
            reason = Reason.DEVICE_UNUSABLE
            self._devices.make_folders(spec)
            if not self._link.connected:
                self._devices.clear(self._devices.unwanted(spec))
        except OSError as error:
            return Verdict(ConditionType.PREFLIGHT, "False", reason, f"node {self._node}: {error}; see dmesg there")
        return verdict

    def _release(self, cache_node: CacheNode) -> Verdict:
        """Nothing of kvtier is left for the class, or the verdict says what resists. Blocks."""
        try:
            remove_arena(self._arena.mount)
            self._devices.remove_all(cache_node.spec)
        except OSError as error:
            message = f"node {self._node}: {error}; it is tried again every few seconds"
            return Verdict(ConditionType.RELEASED, "False", Reason.RELEASE_BLOCKED, message)
        return Verdict(ConditionType.RELEASED, "True", Reason.NOTHING_LEFT, f"nothing is left on node {self._node}")

    async def _report(self, cache_node: CacheNode, verdicts: list[Verdict]) -> bool:
        """The conditions are on the object; False: not now, because the API server did not take them."""
        present = cache_node.conditions
        wanted = to_conditions(verdicts, present, generation=cache_node.generation, now=datetime.now(UTC))
        if all(present.get(condition["type"]) == condition for condition in wanted):
            return True
        try:
            applied = await self._api.apply_status(cache_node, MANAGER_NODE, {"conditions": wanted})
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            if not (isinstance(error, ApiError) and error.is_conflict):  # else the watch brings the newer object
                log.warning("the node's conditions are not written: %s", error or type(error).__name__)
            return False
        for verdict in verdicts:
            log.info("%s is %s: %s: %s", verdict.type, verdict.status, verdict.reason, verdict.message)
        if self._cache_node is cache_node:
            self._cache_node = applied
        return True

    def _direct_link(self, cache_node: CacheNode | None) -> None:
        """The store link serves the class that the object names, and remembers it."""
        tier_class = cache_node.spec.tier_class if cache_node else None
        if tier_class is None:
            self._class_file.unlink(missing_ok=True)
        elif not self._class_file.exists() or self._class_file.read_text() != tier_class:
            self._class_file.write_text(tier_class)
        self._link.offer_devices(raw_devices(cache_node.spec) if cache_node and not cache_node.spec.drain else ())
        self._link.serve_class(tier_class, admit=not (cache_node and is_flushed(cache_node)))

    def _store_came_or_went(self) -> None:
        self._store_left_s = time.monotonic()
        self._changed.set()


def is_flushed(cache_node: CacheNode) -> bool:
    """Whether the store has reported that the drain which the spec asks for is done. Pure."""
    drained = cache_node.conditions.get(ConditionType.DRAINED, {})
    return cache_node.spec.drain and drained.get("status") == "True"


def has_ended(cache_node: CacheNode) -> bool:
    """Whether the store's last word is that it has ended, so that its connection is not merely lost. Pure."""
    ready = cache_node.conditions.get(ConditionType.READY, {})
    return ready.get("reason") == Reason.STORE_STOPPED


def decide_release_wait(cache_node: CacheNode, absent_s: float, *, connected: bool) -> Verdict | None:
    """Why the node is not released yet; None: release it now. Pure.

    `absent_s` is how long no store has been there, in seconds.
    """
    flushed = is_flushed(cache_node)
    spec = cache_node.spec
    if connected:
        doing = "has flushed and is to be ended" if flushed else "is flushing"
        message = f"the store of TierClass {spec.tier_class} on node {cache_node.name} {doing}"
    elif absent_s < (FLUSHED_ABSENT_S if flushed or has_ended(cache_node) else STORE_ABSENT_S):
        message = f"the store of TierClass {spec.tier_class} has left node {cache_node.name}; what it kept goes next"
    else:
        return None
    return Verdict(ConditionType.RELEASED, "False", Reason.IN_USE, message)
