"""One client's connection: hello, then requests, each answered on its own time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable
from typing import Final, Protocol

import msgspec
from kvtier_client.protocol.messages import (
    MAX_CHUNKS,
    PROTOCOL_VERSIONS,
    Chunks,
    Done,
    Get,
    GetReply,
    Hello,
    HelloReply,
    Lookup,
    Put,
    RefusalCode,
    Refused,
    Release,
    Stage,
    ToAgent,
)

from .aio import Tasks
from .channel import Channel
from .core import Pool
from .errors import Refusal
from .log import log
from .puts import Staging
from .store import Store

_MAX_REQUESTS: Final = 16
"""Under way on one connection; the next are read when some are done."""
_HELLO_S: Final = 10.0
_OUT_BYTES: Final = 8 << 20
"""Most that waits for a client that does not read: three of the largest replies."""
SERVER: Final = "kvtier-store/0.1"


class Admission(Protocol):
    """What a session asks of the server that accepted it."""

    def admit(self, session: Session) -> tuple[Store, Pool]:
        """The pool that the session's listener stands for, if it may be used now. Raises Refusal."""

    def leave(self, session: Session) -> None:
        """The connection is closed. Called once."""


class Session:
    """One connection. Event loop thread only."""

    def __init__(self, sock: socket.socket, admission: Admission, volume_id: str, pod: str) -> None:
        """`pod` names whom holds belong to."""
        self.volume_id, self.pod = volume_id, pod
        self.pool: Pool | None = None
        """Set once the hello was accepted."""
        self._admission = admission
        self._store: Store | None = None
        self._staging: Staging | None = None
        self._known_chunks: set[int] = set()
        self._requests = 0
        self._ended = False
        self._tasks = Tasks()
        self._channel: Channel[ToAgent] = Channel(
            sock, ToAgent, self._received, self._closed, on_malformed=self._malformed, out_limit=_OUT_BYTES
        )
        self._hello_timer = asyncio.get_running_loop().call_later(_HELLO_S, self._channel.close, "no hello came")

    @property
    def memory(self) -> int:
        """Bytes that are kept for the client's side of the connection."""
        return self._channel.memory

    def end(self, refusal: Refusal) -> None:
        """Say why, and close. Puts that are under way store nothing more."""
        self._ended = True
        self._channel.send(Refused(refusal.code, refusal.message))
        self._channel.close_when_sent(str(refusal))

    def _closed(self, reason: str) -> None:
        self._hello_timer.cancel()
        if self._staging is not None:
            self._staging.done()
            self._staging = None
        log("session.closed", pod=self.pod, reason=reason)
        self._admission.leave(self)

    def _malformed(self, reason: str) -> None:
        self._channel.send(Refused(RefusalCode.MALFORMED, reason))

    def _received(self, message: ToAgent) -> None:
        try:
            self._handle(message)
        except Refusal as refusal:
            self._channel.send(Refused(refusal.code, refusal.message, getattr(message, "request_id", 0)))
            if isinstance(message, Hello) or self.pool is None:
                self._channel.close_when_sent(str(refusal))

    def _handle(self, message: ToAgent) -> None:
        if isinstance(message, Hello):
            self._hello(message)
            return
        pool, store = self.pool, self._store
        if pool is None or store is None:
            raise Refusal(RefusalCode.MALFORMED, "the first frame has to be a hello")
        if isinstance(message, Lookup):
            self._channel.send(store.lookup(pool, message))
        elif isinstance(message, Release):
            pool.holds.release(self.pod, message.hold_id)
            pool.progress.fire()
        elif isinstance(message, Stage):
            self._stage(message)
        elif isinstance(message, Get):
            self._start(message.request_id, self._get(store, pool, message))
        else:
            self._put(store, pool, message)

    def _hello(self, hello: Hello) -> None:
        if self.pool is not None:
            raise Refusal(RefusalCode.MALFORMED, "a second hello")
        lowest, highest = PROTOCOL_VERSIONS
        version = min(highest, hello.versions[1])
        if version < max(lowest, hello.versions[0]):
            raise Refusal(
                RefusalCode.VERSION,
                f"the client speaks versions {hello.versions[0]} to {hello.versions[1]}, this store {lowest} to "
                f"{highest}; install a client at most one minor release away",
            )
        self._store, self.pool = self._admission.admit(self)
        self._hello_timer.cancel()
        grant = self.pool.grant
        assert grant is not None
        name = f"{grant.namespace}/{grant.name}" if grant.namespace else grant.name
        log("session.opened", pod=self.pod, client=hello.client[:80], pool=name)
        self._channel.send(HelloReply(version, SERVER, name, grant.uid))

    def _stage(self, message: Stage) -> None:
        fd = self._channel.take_fd()
        if fd is None:
            raise Refusal(RefusalCode.BAD_STAGING, "no descriptor came with the staging")
        staging = Staging(fd, message.bytes, lambda: not self._ended)
        if self._staging is not None:
            self._staging.done()
        self._staging = staging
        self._channel.send(Done(message.request_id))

    def _put(self, store: Store, pool: Pool, message: Put) -> None:
        if self._staging is None:
            raise Refusal(RefusalCode.BAD_STAGING, "stage memory before the first put")
        self._start(message.request_id, store.put(pool, self._staging, message))

    async def _get(self, store: Store, pool: Pool, message: Get) -> msgspec.Struct:
        reply = await store.get(pool, self.pod, message)
        try:
            if not self._channel.closed:
                self._announce(store, pool, reply)
        except OSError as error:
            pool.holds.release(self.pod, reply.hold_id)
            raise Refusal(RefusalCode.UNAVAILABLE, f"the arena cannot be opened: {error.strerror}") from error
        return reply

    def _announce(self, store: Store, pool: Pool, reply: GetReply) -> None:
        """Send descriptors of chunks that are new to this connection, before the reply that names them."""
        fresh = list(dict.fromkeys(place.chunk for place in reply.places if place.chunk not in self._known_chunks))
        gone = [id_ for id_ in self._known_chunks if not store.has_chunk(id_)] if fresh else []
        self._known_chunks.difference_update(gone)
        for start in range(0, len(fresh), MAX_CHUNKS):
            ids = fresh[start : start + MAX_CHUNKS]
            fds: list[int] = []
            try:
                for id_ in ids:
                    fds.append(os.open(store.client_chunk_path(pool, id_), os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401
            except OSError:
                for fd in fds:
                    os.close(fd)
                raise
            self._channel.send(Chunks(ids, gone), fds)
            self._known_chunks.update(ids)
            gone = []

    def _start(self, request_id: int, work: Awaitable[msgspec.Struct]) -> None:
        self._requests += 1
        if self._requests >= _MAX_REQUESTS:
            self._channel.pause()
        self._tasks.start("request", self._answer(request_id, work))

    async def _answer(self, request_id: int, work: Awaitable[msgspec.Struct]) -> None:
        try:
            reply = await work
        except Refusal as refusal:
            reply = Refused(refusal.code, refusal.message, request_id)
        except Exception:
            self._channel.close("internal error")  # the task's own report names it
            raise
        finally:
            self._requests -= 1
            self._channel.resume()
        if self._channel.closed:
            self._give_up(reply)
        else:
            self._channel.send(reply)

    def _give_up(self, reply: msgspec.Struct) -> None:
        """The client is gone: what was held for it would only lapse."""
        if isinstance(reply, GetReply) and self.pool is not None:
            self.pool.holds.release(self.pod, reply.hold_id)
