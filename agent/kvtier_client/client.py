"""The client: lookup, get and put against the local agent. Whatever fails is a miss.

What goes wrong with the agent, the node or the connection never raises: the call finds, restores or
stores nothing (or less), and is counted by cause in `misses`. Wrong arguments raise ValueError.
The protocol's page: docs/protocol.md.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np

from .arena import ChunkMappings
from .buffers import readable_bytes, writable_bytes
from .checks import check_chain, check_deadline, check_pages, check_put
from .connection import Connection
from .failures import GENERATION, PROTOCOL, SIZE_MISMATCH, Deadline, Failure
from .pool import ConnectionPool
from .protocol.messages import WHOLE_BLOCK, Get, GetReply, Lookup, LookupReply, PageId, PutReply, Reach
from .putting import PutStep, Putter
from .results import BufferLike, Found, Held, Page, Restored, Stored
from .staging import cut_into_parts

SOCKET_VARIABLE: Final = "KVTIER_SOCKET"
DEFAULT_SOCKET: Final = "/run/kvtier/kvtier.sock"

log = logging.getLogger("kvtier.client")
Result = TypeVar("Result")


class Client:
    """A pod's way to the cache. Thread-safe; usable in a child after a fork, which connects anew."""

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        deadline_s: float = 1.0,
        put_deadline_s: float = 30.0,
        staging_bytes: int = 64 << 20,
    ) -> None:
        """Connects at the first call, so that the agent need not be there yet.

        `socket_path` is by default $KVTIER_SOCKET, or else /run/kvtier/kvtier.sock. `deadline_s` bounds each
        lookup and get, `put_deadline_s` each put, unless the call says otherwise. `staging_bytes` of this pod's
        memory are used at most for puts, which take turns. Raises ValueError.
        """
        check_deadline(deadline_s)
        check_deadline(put_deadline_s)
        if staging_bytes < 4096:
            raise ValueError(f"staging_bytes must be at least 4096, not {staging_bytes}")
        self._path = Path(socket_path or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
        self._deadline_s = deadline_s
        self._put_deadline_s = put_deadline_s
        self._staging_bytes = staging_bytes
        self._request_ids = itertools.count(1)
        self._start_afresh()
        _forkable.add(self)

    @property
    def misses(self) -> Counter[str]:
        """Failed calls by cause, as counted up to now; a page that is merely absent is no failure.

        Causes: no_agent, timeout, closed, protocol, refused:CODE, backoff, busy, generation, size_mismatch,
        local, client_closed.
        """
        with self._count_lock:
            return self._misses.copy()

    def lookup(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> Found:
        """How many leading blocks of the chain `hashes` can be had now.

        `pages` are those that make a block whole for the caller. At most 32,768 pages are asked for; what
        lies behind them is not looked up. Raises ValueError.
        """
        asked = check_chain(layout, hashes, check_pages(pages))
        deadline = self._deadline(deadline_s)

        def ask(connection: Connection) -> Found:
            request = Lookup(next(self._request_ids), layout, asked, tuple(pages))
            reply = connection.request(request, LookupReply, deadline)
            if not 0 <= reply.dram_blocks <= reply.whole_blocks <= len(asked):
                raise Failure(PROTOCOL, f"the agent's answer to {len(asked)} blocks makes no sense: {reply}")
            return Found(reply.whole_blocks, reply.dram_blocks)

        if not asked:
            return Found()
        return self._attempt(ask, deadline) or Found()

    def get(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> Held:
        """The leading blocks of the chain that are there by the deadline, in place and held.

        Use it in a `with` block; a hold that is not released lapses by itself, and then `intact()` tells.
        Raises ValueError.
        """
        asked = check_chain(layout, hashes, check_pages(pages))
        deadline = self._deadline(deadline_s)

        def ask(connection: Connection) -> Held:
            request = Get(next(self._request_ids), layout, asked, deadline.answer_within_ms(), tuple(pages))
            reply = connection.request(request, GetReply, deadline)
            if not 0 <= reply.blocks <= len(asked) or len(reply.places) != reply.blocks * len(pages):
                raise Failure(PROTOCOL, f"the agent named {len(reply.places)} places for {reply.blocks} blocks")
            places = tuple((connection.chunk_of(place), place) for place in reply.places)
            release = _releaser(self._pool, connection, reply.hold_id) if reply.hold_id else None
            return Held(len(pages), places, release, lambda: self._count(GENERATION))

        if not asked:
            return Held()
        return self._attempt(ask, deadline) or Held()

    def get_into(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        buffers: Sequence[BufferLike],
        *,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        deadline_s: float | None = None,
    ) -> Restored:
        """Copy the leading blocks into `buffers`, one of exactly the page's size for each page, and verify them.

        Buffers come block after block, pages as asked, as many as hashes times pages. Raises ValueError.
        """
        if len(buffers) != len(hashes) * len(pages):
            raise ValueError(f"{len(hashes)} blocks of {len(pages)} pages need as many buffers, not {len(buffers)}")
        targets = [writable_bytes(buffer, f"buffers[{index}]") for index, buffer in enumerate(buffers)]
        with self.get(layout, hashes, pages=pages, deadline_s=deadline_s) as held:
            views = held.views
            copied = 0
            for target, view in zip(targets, views, strict=False):
                if target.nbytes != view.nbytes:
                    self._count(SIZE_MISMATCH)
                    break
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(view, np.uint8))
                copied += 1
            intact = held.intact()
        blocks = min(copied // len(pages), intact)
        return Restored(blocks, held.tiers[: blocks * len(pages)])

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
        stand together. What exceeds the staging is stored in several steps, in chain order, so that a failure
        leaves a shorter chain. Raises ValueError.
        """
        check_put(layout, parent, pages)
        data = [readable_bytes(page.data, f"pages[{index}].data") for index, page in enumerate(pages)]
        parts = cut_into_parts(parent, pages, [view.nbytes for view in data], self._putter.staging_bytes)
        deadline = self._deadline(self._put_deadline_s if deadline_s is None else deadline_s)
        source = iter(data)
        replies: list[PutReply] = []
        for part in parts:
            step = PutStep(layout, part, tuple(itertools.islice(source, len(part.pages))), reach)
            reply = self._put_step(step, deadline)
            if reply is None:
                break
            replies.append(reply)
        return Stored(
            sum(reply.stored_pages for reply in replies),
            sum(reply.known_pages for reply in replies),
            _least([reply.reached for reply in replies], reach) if len(replies) == len(parts) else None,
        )

    def close(self) -> None:
        """Close the connections; later calls are misses. May be repeated. Held views stay readable."""
        _forkable.discard(self)
        self._pool.close()
        self._putter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_afresh(self) -> None:
        """Everything that a child process must not share with its parent."""
        self._count_lock = threading.Lock()
        self._misses: Counter[str] = Counter()
        mappings, path = ChunkMappings(), self._path
        self._pool = ConnectionPool(lambda deadline: Connection.open(path, mappings, deadline))
        self._putter = Putter(self._staging_bytes)

    def _after_fork(self) -> None:
        self._pool.abandon()
        self._putter.drop_staging()
        self._start_afresh()

    def _deadline(self, seconds: float | None) -> Deadline:
        return Deadline(self._deadline_s if seconds is None else check_deadline(seconds))

    def _attempt(self, ask: Callable[[Connection], Result], deadline: Deadline) -> Result | None:
        """The outcome of `ask` on a connection; None, and counted, when it fails."""
        try:
            with self._pool.borrow(deadline) as connection:
                return ask(connection)
        except Failure as failure:
            self._count(failure.cause)
            log.debug("a call failed: %s", failure)
            return None

    def _put_step(self, step: PutStep, deadline: Deadline) -> PutReply | None:
        request_id = next(self._request_ids)
        try:
            with self._putter.turn(deadline):
                return self._attempt(
                    lambda connection: self._putter.put_step(step, connection, deadline, request_id), deadline
                )
        except Failure as failure:
            self._count(failure.cause)
            return None

    def _count(self, cause: str) -> None:
        with self._count_lock:
            self._misses[cause] += 1


def _least(reaches: Sequence[Reach | None], asked: Reach) -> Reach | None:
    """How far all of them got; `asked` where there are none, and None where one got nowhere."""
    known = [reach for reach in reaches if reach is not None]
    return min(known, key=list(Reach).index, default=asked) if len(known) == len(reaches) else None


def _releaser(pool: ConnectionPool, connection: Connection, hold_id: int) -> Callable[[], None]:
    return lambda: pool.release(connection, hold_id)


_forkable: weakref.WeakSet[Client] = weakref.WeakSet()


def _reconnect_in_child() -> None:
    for client in list(_forkable):
        client._after_fork()


os.register_at_fork(after_in_child=_reconnect_in_child)
