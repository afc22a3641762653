"""The client: lookups, gets and puts against the local agent. Whatever fails is a miss.

What goes wrong with the agent, the node or the connection never raises: the call finds, restores or
stores nothing (or less), and is counted by cause in `misses`. Wrong arguments raise ValueError.
For asyncio: `kvtier_client.aio`. The protocol's page: docs/protocol.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from .calls import Call
from .connection import Connection
from .driving import drive
from .failures import Deadline, Failure
from .flows import open_connection
from .pool import Turn
from .protocol.messages import WHOLE_BLOCK, PageId, Reach
from .results import BufferLike, Found, Held, Hold, Page, Restored, Stored, Visit
from .staging import Lease
from .workings import ClientBase

Result = TypeVar("Result")


class Client(ClientBase):
    """A pod's way to the cache. Thread-safe; usable in a child after a fork, which connects anew."""

    def lookup(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        prefetch: bool = False,
        deadline_s: float | None = None,
    ) -> Found:
        """How many leading blocks of the chain `hashes` can be had now.

        `pages` are those that make a block whole for the caller. At most 32,768 pages are asked for; what lies behind
        them is not looked up. With `prefetch` the agent starts to bring into DRAM what it found below. Raises
        ValueError.
        """
        return self._carry_out(self._workings.calls.lookup(layout, hashes, pages, prefetch), deadline_s)

    def get(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Held:
        """The leading blocks of the chain that are there by the deadline, in place and held.

        Use it in a `with` block; a hold that is not released lapses by itself, and then `intact()` tells. With `hold`,
        the id of a hold of this pod, it is what that one keeps, and whoever made it releases it; if it has ended the
        blocks are held anew. Raises ValueError.
        """
        return self._carry_out(self._workings.calls.get(layout, hashes, pages, hold), deadline_s)

    def get_into(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        buffers: Sequence[BufferLike | None],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Restored:
        """Copy the leading blocks into `buffers`, one of exactly the page's size for each page, and verify them.

        Buffers come block after block, pages as asked, as many as hashes times pages; None where a trailing page is
        not wanted. An array whose first dimension counts them is as good as a list, and faster where they are many.
        Copies begin with the first part of the answer, while later parts are still read from a device; what was
        verified before a failure counts. Buffers from `aligned_pages` are the fastest. Raises ValueError.
        """
        getting, call = self._workings.calls.get_into(layout, hashes, buffers, pages, hold)
        self._carry_out(call, deadline_s)
        return getting.result()

    def read(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        visit: Visit,
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        hold: int = 0,
        deadline_s: float | None = None,
    ) -> Restored:
        """Show the leading blocks in place to `visit`, part by part as they arrive, and verify them after each visit.

        The first blocks are used while later ones are still read from a device, without a copy of them; `visit` is
        called in chain order, in the calling thread. What the result does not cover was overwritten meanwhile, or did
        not come. What `visit` raises ends the call. Raises ValueError.
        """
        getting, call = self._workings.calls.read(layout, hashes, visit, pages, hold)
        self._carry_out(call, deadline_s)
        return getting.result()

    def hold(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> Hold:
        """Bring the leading blocks into DRAM, as far as the deadline allows, and keep them there.

        Its `id` may go to other processes of the same pod, for `get(..., hold=id)`. Raises ValueError.
        """
        return self._carry_out(self._workings.calls.hold(layout, hashes, pages), deadline_s)

    def release(self, hold: int, *, deadline_s: float | None = None) -> bool:
        """Give back a hold of another process of this pod by its id; whether the agent was told.

        Raises ValueError.
        """
        return self._carry_out(self._workings.calls.release(hold), deadline_s)

    def prefetch(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> int:
        """Start to bring the leading blocks into DRAM, and do not wait for it: how many are there or on their way.

        Raises ValueError.
        """
        return self._carry_out(self._workings.calls.prefetch(layout, hashes, pages), deadline_s)

    def put(
        self,
        layout: bytes,
        parent: bytes | None,
        pages: Sequence[Page],
        *,
        reach: Reach = Reach.DRAM,
        deadline_s: float | None = None,
    ) -> Stored:
        """Store pages of consecutive blocks of one chain, and wait until they reached `reach`.

        `parent` is the hash of the block before the first one, None where the chain begins. Pages of one block
        stand together. A large put is stored piece by piece in chain order, so that a failure leaves a shorter
        chain; while the agent takes one piece the next is copied. Pages that all lie in memory from `staging` are not
        copied. Raises ValueError.
        """
        workings = self._workings
        putting = workings.calls.put(layout, parent, pages, reach, workings.areas)
        if not pages:
            return putting.result()
        deadline = self._options.put_deadline(deadline_s)
        lease: Lease | None = None
        try:
            if putting.lease_bytes:
                lease = self._lease(putting.lease_bytes, deadline)
            call = Call(
                lambda connection, deadline: putting.flow(connection, deadline, workings.stagings, lease), lambda: None
            )
            self._attempt(call, deadline)
        except Failure as failure:
            workings.count_failure(failure)
        finally:
            if lease is not None:
                lease.free()
        return putting.result()

    @contextmanager
    def staging(self, size: int, *, deadline_s: float | None = None) -> Iterator[memoryview]:
        """`size` bytes to fill with pages, which a put within the context then stores without another copy.

        Each page begins at a multiple of 4,096 for the agent's copy to be fast. What was put once is not to be written
        again: take new staging for the next blocks. Where none is to be had by the deadline it is ordinary memory,
        and its put copies. Raises ValueError.
        """
        self._options.check_staging(size)
        workings = self._workings
        lease: Lease | None = None
        deadline = self._options.put_deadline(deadline_s)
        try:
            if size:
                lease = self._lease(size, deadline)
        except Failure as failure:
            workings.count_failure(failure)
        area = workings.areas.open(size, lease)
        try:
            yield area.view
        finally:
            workings.areas.close(area)

    def delete(self, layout: bytes, hashes: Sequence[bytes], *, deadline_s: float | None = None) -> bool:
        """Delete these blocks and all below them from every tier; True: done, and they will not come back.

        Raises ValueError.
        """
        return self._carry_out(self._workings.calls.delete(layout, hashes), deadline_s)

    def pin(self, layout: bytes, hashes: Sequence[bytes], seconds: int, *, deadline_s: float | None = None) -> int:
        """Keep the leading blocks for `seconds`, 0 to let go: how many are pinned now.

        The pool limits how much may be pinned. Raises ValueError.
        """
        return self._carry_out(self._workings.calls.pin(layout, hashes, seconds), deadline_s)

    def report(
        self,
        layout: bytes,
        *,
        block_tokens: int,
        prefill_tokens_per_s: float,
        at_depth: int,
        bytes_per_token: float,
        deadline_s: float | None = None,
    ) -> bool:
        """Tell how fast the engine computes tokens behind the first `at_depth`, for what `offered_blocks` says.

        `bytes_per_token` is the KV cache of one token. Whether the agent was told. Raises ValueError.
        """
        call = self._workings.calls.report(layout, block_tokens, prefill_tokens_per_s, at_depth, bytes_per_token)
        return self._carry_out(call, deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _carry_out(self, call: Call[Result], deadline_s: float | None) -> Result:
        """The call's outcome, or what it comes to when it fails."""
        deadline = self._options.deadline(deadline_s)
        if call.flow is None:
            return call.nothing()
        try:
            return self._attempt(call, deadline)
        except Failure as failure:
            self._workings.count_failure(failure)
            return call.nothing()

    def _attempt(self, call: Call[Result], deadline: Deadline) -> Result:
        """The outcome on a connection. Raises Failure."""
        workings = self._workings
        pool = workings.pool
        began = time.monotonic()
        connection: Connection | None = None
        try:
            connection = self._connection(deadline)
            assert call.flow is not None
            result = drive(call.flow(connection, deadline), deadline, workings.copier)
        except Failure as failure:
            pool.failed(failure, began, connection)
            raise
        except BaseException:
            if connection is not None:
                pool.drop(connection)
            raise
        pool.succeeded(connection)
        return result

    def _connection(self, deadline: Deadline) -> Connection:
        """An idle connection, or a new one. Raises Failure."""
        pool = self._workings.pool
        turn = pool.take()
        if isinstance(turn, Future):
            turn = self._wait_for_turn(turn, deadline)
        if turn is not None:
            return turn
        try:
            flow = open_connection(self._options.path, self._workings.mappings)
            connection = drive(flow, deadline, self._workings.copier)
        except BaseException:
            pool.not_opened()
            raise
        self._workings.connected(connection)
        return connection

    def _wait_for_turn(self, future: Future[Turn], deadline: Deadline) -> Turn:
        try:
            return future.result(deadline.remaining())
        except (TimeoutError, CancelledError):
            raise self._workings.pool.give_up(future) from None
        except BaseException:
            self._workings.pool.give_up(future)
            raise

    def _lease(self, size: int, deadline: Deadline) -> Lease:
        """Staging of `size` bytes. Raises Failure."""
        stagings = self._workings.stagings
        future = stagings.lease(size)
        try:
            return future.result(deadline.remaining())
        except TimeoutError:
            raise stagings.give_up(future) from None
        except BaseException:
            stagings.give_up(future)
            raise
