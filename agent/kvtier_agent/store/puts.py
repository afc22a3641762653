"""Puts: from a client's staging into slots, into the index, and on to nvme.

Slots are taken for one batch after the other, so that those before are copied meanwhile. A batch waits for its turn
among all that are copied: puts slow down before they take what gets need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import Put, PutReply, Reach, RefusalCode
from kvtier_index import BUSY, FRESH, Refused

from . import jobs
from .aio import let_others
from .arena_format import PAGE, round_up
from .core import Core, Pool, unix_now
from .errors import JobFailed, Refusal
from .log import log
from .movers import Priority
from .policy import NoRoom
from .put_plan import PutPlan, batches, check_put, refusal_of
from .room import Room
from .staging import Staging

_BATCH_BYTES: Final = 4 << 20
_BATCH_PAGES: Final = 256
_BATCHES_AT_ONCE: Final = 4
"""For each mover, of all puts together."""
_MAX_DEADLINE_MS: Final = 600_000


def deadline_of(deadline_ms: int) -> float:
    """The loop's time at which a request's deadline passes."""
    return asyncio.get_running_loop().time() + min(max(deadline_ms, 0), _MAX_DEADLINE_MS) / 1000


class _Request(NamedTuple):
    pool: Pool
    staging: Staging
    message: Put
    plan: PutPlan
    deadline: float


class _Storing:
    """How far a put is."""

    def __init__(self) -> None:
        self.copies: list[asyncio.Task[int]] = []
        self.seen = 0
        """Leading pages of the put that are known by now or have a slot."""
        self.taken = 0
        """Of these, how many got a slot."""
        self.obstacle: NoRoom | None = None
        """Why it went no further."""

    @property
    def known(self) -> int:
        """Pages that others had stored before."""
        return self.seen - self.taken


class Puts:
    """Carries out puts. Event loop thread only."""

    def __init__(self, core: Core, room: Room) -> None:
        self._core, self._room = core, room
        self._turns = asyncio.Semaphore(core.config.movers * _BATCHES_AT_ONCE)

    def put(self, pool: Pool, staging: Staging, message: Put) -> Awaitable[PutReply]:
        """Store what is new, and wait for the reach asked for. Keeps the staging from now on. Raises Refusal."""
        staging.use()
        return self._checked(pool, staging, message)

    async def _checked(self, pool: Pool, staging: Staging, message: Put) -> PutReply:
        pool.counters["puts"] += 1
        try:
            request = _Request(
                pool, staging, message, check_put(message, staging.size), deadline_of(message.deadline_ms)
            )
            await let_others()
            return await self._put(request)
        except Refused as error:
            pool.counters["puts_refused"] += 1
            raise refusal_of(error) from error
        except Refusal:
            pool.counters["puts_refused"] += 1
            raise
        finally:
            staging.done()

    async def _put(self, request: _Request) -> PutReply:
        pool, message, plan = request.pool, request.message, request.plan
        states = await self._states(request)
        if states is None:
            return PutReply(message.request_id, 0, 0, None)
        storing = _Storing()
        try:
            if FRESH in states:
                await let_others()
                await self._store(request, storing)
            else:
                storing.seen = len(plan.pages)
        except Refused:
            if not storing.seen:
                raise
        finally:  # a copy that has begun ends by itself; until then the staging is kept
            stored = sum([await copy for copy in storing.copies])
        if storing.obstacle is not None and not storing.seen:
            raise Refusal(RefusalCode.NO_ROOM, storing.obstacle.reason)
        chain = pool.index.chain_of(message.layout, plan.pages[-1][0], [key[:2] for key in plan.keys])
        if stored:
            self._core.nvme.stored(pool, chain, grew=message.parent is not None)
        if stored + storing.known < len(plan.pages):
            return PutReply(message.request_id, stored, storing.known, None)
        reached = Reach.DRAM
        if message.reach is not Reach.DRAM and self._core.nvme.has_place(pool):
            reached = await self._core.nvme.settle(pool, chain, message.reach, request.deadline)
        return PutReply(message.request_id, stored, storing.known, reached)

    async def _states(self, request: _Request) -> list[int] | None:
        """Which pages are known and which fresh, once nobody else stores any of them, or the parent.

        None: someone still does at the deadline. Raises Refused.
        """
        pool, message = request.pool, request.message
        while BUSY in (states := pool.index.check_put(message.layout, message.parent, request.plan.pages)):
            if not await pool.progress.wait(request.deadline):
                return None
        return states

    async def _store(self, request: _Request, storing: _Storing) -> None:
        """Take slots for the new pages as far as there is room, and start to copy into them. Raises Refused."""
        for start, stop in batches(request.plan, 0, _BATCH_BYTES, _BATCH_PAGES):
            await self._store_batch(request, storing, start, stop)
            if storing.seen < stop:
                return
            await let_others()

    async def _store_batch(self, request: _Request, storing: _Storing, start: int, stop: int) -> None:
        pool, plan, message = request.pool, request.plan, request.message
        slot_bytes = round_up(plan.pages[start][4], PAGE)
        while storing.seen < stop and storing.obstacle is None and request.staging.may_store():
            if not await self._turn(request.deadline):
                storing.obstacle = NoRoom("the movers were busy until the deadline")
                return
            taken: list[tuple[int, int]] = []
            first, free = storing.seen, self._room.free_slots(pool, slot_bytes)
            count = stop - first if free is None else min(stop - first, free)
            try:
                taken, seen, busy = pool.index.reserve(
                    message.layout,
                    plan.parents[first],
                    plan.pages[first : first + count],
                    0,
                    count,
                    unix_now(),
                    self._room.max_slots(pool),
                )
                storing.seen += seen
            finally:
                if not taken:
                    self._turns.release()
            if taken:
                storing.taken += len(taken)
                pool.filling += len(taken)
                copy = self._copy(request, first, taken, pool.fills.begin())
                storing.copies.append(self._core.tasks.start("copy", copy))
                await let_others()
            self._room.look_ahead(pool, slot_bytes)
            if storing.seen < stop and not taken:
                storing.obstacle = await self._make_room(request, slot_bytes, others=busy)

    async def _make_room(self, request: _Request, slot_bytes: int, *, others: bool) -> NoRoom | None:
        """One step towards a slot, or wait for the others that store the next page; None: try again."""
        if asyncio.get_running_loop().time() >= request.deadline:
            return NoRoom("there was no room for it in time")
        if not others:
            return await self._room.make(request.pool, slot_bytes, request.deadline)
        if await request.pool.progress.wait(request.deadline):
            return None
        return NoRoom("someone else stored these pages until the deadline")

    async def _turn(self, deadline: float) -> bool:
        if not self._turns.locked():
            await self._turns.acquire()
            return True
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError:
            return False
        return True

    async def _copy(self, request: _Request, first: int, taken: list[tuple[int, int]], begun: int) -> int:
        """How many of these pages (counted from the put's page number `first` on) are resident now.

        A copy that has begun is waited for, past the deadline too: after the reply the client may change the staging.
        """
        pool, core = request.pool, self._core
        pages = [page for _, page in taken]
        digests = b""
        try:
            job = jobs.CopyIn(
                core.movers.next_id(),
                pool.uid,
                pool.index.refs(pages),
                [request.plan.offsets[first + index] for index, _ in taken],
                begun,
            )
            (copied,) = await core.movers.run(job, Priority.COPY, fd=request.staging.fd, start_by=request.deadline)
            digests = copied.digests
        except JobFailed as error:
            log("copy.failed", pool=pool.uid, error=error)
        finally:
            pool.fills.end(begun)
            stored = self._finish(request, pages, digests)
        return stored

    def _finish(self, request: _Request, pages: list[int], digests: bytes) -> int:
        pool = request.pool
        self._turns.release()
        pool.filling -= len(pages)
        stored = 0
        if digests and request.staging.may_store():
            before = pool.index.dram_bytes
            stored = pool.index.commit(pages, digests)
            pool.counters["pages_stored"] += stored
            pool.counters["bytes_stored"] += pool.index.dram_bytes - before
        else:
            pool.index.abort(pages)
        pool.progress.fire()
        return stored
