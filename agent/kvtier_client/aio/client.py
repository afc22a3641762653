"""The client's face for asyncio. Its flows, and so all that it does, are those of `..client`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

from ..calls import Call
from ..connection import Connection
from ..failures import Deadline, Failure
from ..flows import open_connection
from ..pool import Turn
from ..protocol.messages import WHOLE_BLOCK, PageId, Reach
from ..results import BufferLike, Found, Held, Hold, Page, Restored, Stored, Visit
from ..staging import Lease
from ..workings import ClientBase
from .driving import drive

Result = TypeVar("Result")


class AsyncClient(ClientBase):
    """A pod's way to the cache, for one event loop at a time. Each call does what `Client`'s of that name does.

    A call that is cancelled costs its connection, and leaves the caller's memory alone once it has ended.
    """

    async def lookup(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        prefetch: bool = False,
        deadline_s: float | None = None,
    ) -> Found:
        """How many leading blocks of the chain `hashes` can be had now. As `Client.lookup`."""
        return await self._carry_out(self._workings.calls.lookup(layout, hashes, pages, prefetch), deadline_s)

    async def get(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Held:
        """The leading blocks that are there by the deadline, in place and held. As `Client.get`."""
        return await self._carry_out(self._workings.calls.get(layout, hashes, pages, hold), deadline_s)

    async def get_into(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        buffers: Sequence[BufferLike | None],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Restored:
        """Copy the leading blocks into `buffers` and verify them. As `Client.get_into`."""
        getting, call = self._workings.calls.get_into(layout, hashes, buffers, pages, hold)
        await self._carry_out(call, deadline_s)
        return getting.result()

    async def read(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        visit: Visit,
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Restored:
        """Show the leading blocks in place to `visit`, part by part, in a thread. As `Client.read`."""
        getting, call = self._workings.calls.read(layout, hashes, visit, pages, hold)
        await self._carry_out(call, deadline_s)
        return getting.result()

    async def hold(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> Hold:
        """Bring the leading blocks into DRAM and keep them there. As `Client.hold`."""
        return await self._carry_out(self._workings.calls.hold(layout, hashes, pages), deadline_s)

    async def release(self, hold: int, *, deadline_s: float | None = None) -> bool:
        """Give back a hold of another process of this pod. As `Client.release`."""
        return await self._carry_out(self._workings.calls.release(hold), deadline_s)

    async def prefetch(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> int:
        """Start to bring the leading blocks into DRAM. As `Client.prefetch`."""
        return await self._carry_out(self._workings.calls.prefetch(layout, hashes, pages), deadline_s)

    async def put(
        self,
        layout: bytes,
        parent: bytes | None,
        pages: Sequence[Page],
        *,
        reach: Reach = Reach.DRAM,
        deadline_s: float | None = None,
    ) -> Stored:
        """Store pages of consecutive blocks of one chain. As `Client.put`."""
        workings = self._workings
        putting = workings.calls.put(layout, parent, pages, reach, workings.areas)
        if not pages:
            return putting.result()
        deadline = self._options.put_deadline(deadline_s)
        lease: Lease | None = None
        try:
            if putting.lease_bytes:
                lease = await self._lease(putting.lease_bytes, deadline)
            call = Call(
                lambda connection, deadline: putting.flow(connection, deadline, workings.stagings, lease), lambda: None
            )
            await self._attempt(call, deadline)
        except Failure as failure:
            workings.count_failure(failure)
        finally:
            if lease is not None:
                lease.free()
        return putting.result()

    @asynccontextmanager
    async def staging(self, size: int, *, deadline_s: float | None = None) -> AsyncIterator[memoryview]:
        """`size` bytes to fill with pages, which a put then stores without another copy. As `Client.staging`."""
        self._options.check_staging(size)
        workings = self._workings
        lease: Lease | None = None
        deadline = self._options.put_deadline(deadline_s)
        try:
            if size:
                lease = await self._lease(size, deadline)
        except Failure as failure:
            workings.count_failure(failure)
        area = workings.areas.open(size, lease)
        try:
            yield area.view
        finally:
            workings.areas.close(area)

    async def delete(self, layout: bytes, hashes: Sequence[bytes], *, deadline_s: float | None = None) -> bool:
        """Delete these blocks and all below them from every tier. As `Client.delete`."""
        return await self._carry_out(self._workings.calls.delete(layout, hashes), deadline_s)

    async def pin(
        self, layout: bytes, hashes: Sequence[bytes], seconds: int, *, deadline_s: float | None = None
    ) -> int:
        """Keep the leading blocks for `seconds`, 0 to let go. As `Client.pin`."""
        return await self._carry_out(self._workings.calls.pin(layout, hashes, seconds), deadline_s)

    async def report(
        self,
        layout: bytes,
        *,
        block_tokens: int,
        prefill_tokens_per_s: float,
        at_depth: int,
        bytes_per_token: float,
        deadline_s: float | None = None,
    ) -> bool:
        """Tell how fast the engine computes. As `Client.report`."""
        call = self._workings.calls.report(layout, block_tokens, prefill_tokens_per_s, at_depth, bytes_per_token)
        return await self._carry_out(call, deadline_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _carry_out(self, call: Call[Result], deadline_s: float | None) -> Result:
        """The call's outcome, or what it comes to when it fails."""
        deadline = self._options.deadline(deadline_s)
        if call.flow is None:
            return call.nothing()
        try:
            return await self._attempt(call, deadline)
        except Failure as failure:
            self._workings.count_failure(failure)
            return call.nothing()

    async def _attempt(self, call: Call[Result], deadline: Deadline) -> Result:
        """The outcome on a connection. Raises Failure."""
        workings = self._workings
        pool = workings.pool
        began = time.monotonic()
        connection: Connection | None = None
        try:
            connection = await self._connection(deadline)
            assert call.flow is not None
            result = await drive(call.flow(connection, deadline), deadline, workings.copier)
        except Failure as failure:
            pool.failed(failure, began, connection)
            raise
        except BaseException:
            if connection is not None:
                pool.drop(connection)
            raise
        pool.succeeded(connection)
        return result

    async def _connection(self, deadline: Deadline) -> Connection:
        """An idle connection, or a new one. Raises Failure."""
        workings = self._workings
        turn = workings.pool.take()
        if isinstance(turn, Future):
            turn = await self._wait_for_turn(turn, deadline)
        if turn is not None:
            return turn
        try:
            flow = open_connection(self._options.path, workings.mappings)
            connection = await drive(flow, deadline, workings.copier)
        except BaseException:
            workings.pool.not_opened()
            raise
        workings.connected(connection)
        return connection

    async def _wait_for_turn(self, future: Future[Turn], deadline: Deadline) -> Turn:
        try:
            async with asyncio.timeout(deadline.remaining()):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise self._workings.pool.give_up(future) from None
        except BaseException:
            self._workings.pool.give_up(future)
            raise

    async def _lease(self, size: int, deadline: Deadline) -> Lease:
        """Staging of `size` bytes. Raises Failure."""
        stagings = self._workings.stagings
        future = stagings.lease(size)
        try:
            async with asyncio.timeout(deadline.remaining()):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise stagings.give_up(future) from None
        except BaseException:
            stagings.give_up(future)
            raise
