"""The one reconcile loop: woken by watches, it decides from the whole view and carries the plan out.

It never decides on a view that has not been seen complete. It keeps nothing that the next process would miss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from kvtier_operator.apply.api import Api
from kvtier_operator.apply.carry_out import Executor, explain
from kvtier_operator.plan import decide, nodes_without_room
from kvtier_operator.settings import Settings
from kvtier_operator.view.audit import Auditor
from kvtier_operator.view.cache import Cache
from kvtier_operator.view.facts import RoomFacts, View
from kvtier_operator.view.requests import sum_requests

log = logging.getLogger(__name__)

DEBOUNCE_S: Final = 0.5
LARGEST_SHARE: Final = 0.25
"""Of the time, that passes may take: a pass over a large cluster is followed by a longer pause."""
RESYNC_S: Final = 30.0
AUDIT_S: Final = 120.0
FIRST_AUDIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 10.0
STUCK_S: Final = 300.0
"""A loop that has not finished a pass, or an audit, for so long is stuck."""
ERRORS: Final = (ApiException, HTTPError, OSError, ValueError)


class Loop:
    """Reconciles until it is cancelled."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._wake = asyncio.Event()
        self._executor = Executor(api)
        self.cache = Cache(changed=self._wake.set)
        self._auditor = Auditor(api, self.cache, settings.namespace)
        self._rooms: dict[str, tuple[float, RoomFacts]] = {}
        self._audited_at = self._finished_at = time.monotonic()

    async def wait_until_served(self) -> None:
        """Return once the API server serves every kind: a kind that comes later would not be watched."""
        pause = FIRST_AUDIT_S
        while True:
            try:
                await self._auditor.list_all()
            except ERRORS as error:
                log.warning("waiting for the API server, and for the chart kvtier-crds: %s", explain(error))
            else:
                return
            await asyncio.sleep(pause)
            pause = min(LONGEST_WAIT_S, pause * 2)

    def ailment(self) -> str:
        """Why the process should be started anew, or empty."""
        now = time.monotonic()
        if self._auditor.silent:
            return f"the watch of {', '.join(sorted(self._auditor.silent))} is silent"
        if now - self._audited_at > STUCK_S:
            return f"no audit of the view for {now - self._audited_at:.0f} s"
        if self._auditor.complete and now - self._finished_at > STUCK_S:
            return f"no reconcile pass finished for {now - self._finished_at:.0f} s"
        return ""

    async def run(self) -> None:
        """Audit and reconcile, side by side."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._audit(), name="audit")
            tasks.create_task(self._reconcile(), name="reconcile")

    async def _audit(self) -> None:
        while True:
            try:
                await self._auditor.audit()
                self._audited_at = time.monotonic()
            except ERRORS as error:
                log.warning("cannot list what there is: %s", explain(error))
            if self._auditor.complete:
                self._wake.set()
            pause = AUDIT_S if self._auditor.complete else FIRST_AUDIT_S
            await asyncio.sleep(pause)

    async def _reconcile(self) -> None:
        while True:
            await self._sleep()
            if not self._auditor.complete:
                continue
            started = time.monotonic()
            await self._pass()
            self._finished_at = time.monotonic()
            await asyncio.sleep((self._finished_at - started) * (1 / LARGEST_SHARE - 1))

    async def _sleep(self) -> None:
        """Until something changed, failed steps are due, or the resync is."""
        due = self._executor.next_retry_s()
        try:
            async with asyncio.timeout(RESYNC_S if due is None else min(RESYNC_S, due)):
                await self._wake.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(DEBOUNCE_S)
        self._wake.clear()

    async def _pass(self) -> None:
        view = self.cache.view()
        rooms = await self._look_up_rooms(view)
        plan = decide(view, rooms, self._executor.refusals(), self._settings, datetime.now(UTC))
        done = await self._executor.carry_out(plan)
        if done:
            log.debug("pass: %d steps", done)

    async def _look_up_rooms(self, view: View) -> Mapping[str, RoomFacts]:
        """What is requested on the nodes that need explaining, as of RESYNC_S ago at most."""
        wanted, now = nodes_without_room(view), time.monotonic()
        self._rooms = {node: kept for node, kept in self._rooms.items() if node in wanted and now - kept[0] < RESYNC_S}
        for node in wanted:
            if node not in self._rooms:
                try:
                    self._rooms[node] = now, RoomFacts(sum_requests(await self._api.pods_on(node)))
                except ERRORS as error:
                    log.warning("cannot list the pods of node %s: %s", node, explain(error))
        return {node: room for node, (_, room) in self._rooms.items()}
