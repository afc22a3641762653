"""Puts: from a client's staging into slots, into the index, and on to nvme."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import Put, PutReply, Reach, RefusalCode

from . import jobs
from .arena import Slot
from .arena_format import PAGE, round_up
from .core import Core, Pool, chain_pages, page_ref
from .errors import JobFailed, Refusal
from .index import AbsentParent, Page
from .log import log
from .movers import Priority
from .policy import NoRoom
from .put_plan import PutPlan, WantedPage, check_put, decide_put, keys_by_first_parent
from .room import Room
from .writer import Writer

_BATCH_BYTES: Final = 8 << 20
_BATCH_PAGES: Final = 500
_MAX_DEADLINE_MS: Final = 600_000
_NEEDED_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Filled(NamedTuple):
    """A page of a put with the slot that takes it."""

    wanted: WantedPage
    slot: Slot


class Staging:
    """Memory that a client made, kept open while a put reads it."""

    def __init__(self, fd: int, size: int, may_store: Callable[[], bool]) -> None:
        """Takes `fd` over; `may_store` tells whether its client still has the pool.

        Raises Refusal, and closes `fd` then, unless it is sealed memory of `size` bytes.
        """
        try:
            check_staging(fd, size)
        except Refusal:
            os.close(fd)
            raise
        self.fd, self.size, self.may_store = fd, size, may_store
        self._users = 1

    def use(self) -> None:
        """Keep it open until one more `done`."""
        self._users += 1

    def done(self) -> None:
        """Undo one `use`, or give up the first one."""
        self._users -= 1
        if self._users == 0:
            os.close(self.fd)


def check_staging(fd: int, size: int) -> None:
    """Raise Refusal unless `fd` is memory of at least `size` bytes, sealed so that it stays so."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise Refusal(RefusalCode.BAD_STAGING, f"the staging is no memfd: {error.strerror}") from error
    if seals & _NEEDED_SEALS != _NEEDED_SEALS:
        raise Refusal(RefusalCode.BAD_STAGING, "seal the staging with F_SEAL_SHRINK and F_SEAL_GROW")
    actual = os.fstat(fd).st_size
    if not 0 < size <= actual:
        raise Refusal(RefusalCode.BAD_STAGING, f"the staging has {actual} bytes, not {size}")


def deadline_of(deadline_ms: int) -> float:
    """The loop's time at which a request's deadline passes."""
    return asyncio.get_running_loop().time() + min(max(deadline_ms, 0), _MAX_DEADLINE_MS) / 1000


class Puts:
    """Carries out puts. Event loop thread only."""

    def __init__(self, core: Core, room: Room, writer: Writer) -> None:
        self._core, self._room, self._writer = core, room, writer

    async def put(self, pool: Pool, staging: Staging, message: Put) -> PutReply:
        """Store what is new, and wait for the reach asked for. Raises Refusal."""
        pool.counters["puts"] += 1
        deadline = deadline_of(message.deadline_ms)
        staging.use()
        try:
            wanted = check_put(message, staging.size)
            plan = await self._plan(pool, message.layout, wanted, deadline)
            if plan is None:
                return PutReply(message.request_id, 0, 0, None)
            stored, no_room = await self._store(pool, staging, message, plan, deadline)
            if no_room is not None and not stored and not plan.known:
                raise Refusal(RefusalCode.NO_ROOM, no_room.reason)
            reached = await self._reach(pool, message, wanted, deadline)
            return PutReply(message.request_id, stored, len(plan.known), reached)
        except Refusal:
            pool.counters["puts_refused"] += 1
            raise
        finally:
            staging.done()

    async def _plan(self, pool: Pool, layout: bytes, wanted: Sequence[WantedPage], deadline: float) -> PutPlan | None:
        """The plan once nobody else stores these pages; None: someone still does at the deadline."""
        while True:
            plan = decide_put(pool.index, pool.pending, layout, wanted)
            if not plan.waits:
                return plan
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return None
            await asyncio.wait(plan.waits, timeout=remaining)

    async def _store(
        self, pool: Pool, staging: Staging, message: Put, plan: PutPlan, deadline: float
    ) -> tuple[int, NoRoom | None]:
        """Store the new pages as far as there is room; how many were, and what stood in the way."""
        if not plan.fresh:
            return 0, None
        pinned = _parents(pool, message.layout, plan)
        mine = {(message.layout, page.hash, page.key) for page in plan.fresh}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pool.pending.update(dict.fromkeys(mine, done))
        for page in pinned:
            pool.index.pin(page)
        try:
            for parent, keys in keys_by_first_parent(plan.fresh).items():
                # warm, so that making room does not take the chain's own ancestors
                pool.index.touch(pool.index.node(message.layout, parent), keys)
            return await self._fill_and_add(pool, staging, message.layout, plan.fresh, deadline)
        finally:
            for page in pinned:
                pool.index.unpin(page)
            for key_ in mine:
                del pool.pending[key_]
            done.set_result(None)

    async def _fill_and_add(
        self, pool: Pool, staging: Staging, layout: bytes, fresh: Sequence[WantedPage], deadline: float
    ) -> tuple[int, NoRoom | None]:
        copies: list[tuple[list[Filled], asyncio.Task[bool]]] = []
        batch: list[Filled] = []
        batch_bytes = 0
        no_room: NoRoom | None = None
        for page in fresh:
            slot_bytes = round_up(page.size, PAGE)
            slot: Slot | NoRoom | None = self._room.reserve_nowait(pool, slot_bytes)
            if batch and (slot is None or batch_bytes >= _BATCH_BYTES or len(batch) == _BATCH_PAGES):
                copies.append((batch, self._start_copy(pool, staging, layout, batch, deadline)))
                batch, batch_bytes = [], 0
            if slot is None:
                slot = await self._room.reserve(pool, slot_bytes, deadline)
            if isinstance(slot, NoRoom):
                no_room = slot
                break
            if not staging.may_store():
                self._room.release(pool, slot)
                break
            batch.append(Filled(page, slot))
            batch_bytes += slot_bytes
        if batch:
            copies.append((batch, self._start_copy(pool, staging, layout, batch, deadline)))
        stored = 0
        for filled, copy in copies:
            good = await copy
            for wanted, slot in filled:
                if good and staging.may_store() and self._add(pool, layout, wanted, slot):
                    stored += 1
                else:
                    self._room.release(pool, slot)
        return stored, no_room

    def _start_copy(
        self, pool: Pool, staging: Staging, layout: bytes, batch: list[Filled], deadline: float
    ) -> asyncio.Task[bool]:
        return self._core.tasks.start("copy", self._copy(pool, staging, layout, batch, deadline))

    async def _copy(self, pool: Pool, staging: Staging, layout: bytes, batch: list[Filled], deadline: float) -> bool:
        """Whether the batch lies committed in its slots.

        A copy that has begun is waited for, past the deadline too: after the reply the client may change the staging.
        """
        refs = [page_ref(page.hash, page.parent, page.key, page.size, slot) for page, slot in batch]
        job = jobs.CopyIn(self._core.movers.next_id(), pool.uid, layout, refs, [page.offset for page, _ in batch])
        try:
            await self._core.movers.run(job, Priority.COPY, fd=staging.fd, start_by=deadline)
        except JobFailed as error:
            log("copy.failed", pool=pool.uid, error=error)
            return False
        return True

    def _add(self, pool: Pool, layout: bytes, wanted: WantedPage, slot: Slot) -> bool:
        """Whether the page is in the index now; not if its parent was lost meanwhile."""
        try:
            page = pool.index.add(layout, wanted.hash, wanted.parent, wanted.key, wanted.size)
        except AbsentParent:
            return False
        if page.slot is not None:
            return False
        pool.index.set_slot(page, slot)
        pool.counters["pages_stored"] += 1
        pool.counters["bytes_stored"] += wanted.size
        return True

    async def _reach(self, pool: Pool, message: Put, wanted: Sequence[WantedPage], deadline: float) -> Reach | None:
        """Write the chain through and say how far all pages of the put, and all before them, got."""
        nodes = [pool.index.node(message.layout, page.hash) for page in wanted]
        present = all(node and page.key in node.pages for node, page in zip(nodes, wanted, strict=True))
        last = next((node for node in reversed(nodes) if node is not None), None)
        keys = {page.key for page in wanted}
        pool.index.touch(last, keys)
        chain = chain_pages(last, keys)
        self._writer.enqueue(pool, chain)
        if not present:
            return None
        if message.reach is Reach.DRAM or not self._writer.has_place(pool):
            return Reach.DRAM
        return await self._writer.settle(pool, chain, message.reach, deadline)


def _parents(pool: Pool, layout: bytes, plan: PutPlan) -> list[Page]:
    """Known pages that new ones hang on: they must stay until these are added."""
    parents = []
    for page in plan.fresh:
        node = pool.index.node(layout, page.parent) if page.parent is not None else None
        if node is not None and page.key in node.pages:
            parents.append(node.pages[page.key])
    return parents
