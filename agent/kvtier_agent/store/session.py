"""One client's connection: hello, then requests, each answered on its own time."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable
from typing import Final, Protocol

import msgspec
from kvtier_client.protocol import messages as m

from .aio import Tasks
from .announcer import Announcer
from .channel import Channel
from .closer import Closer
from .core import Pool
from .errors import Refusal
from .gets import Part
from .log import log
from .staging import Staging
from .store import Store

_MAX_REQUESTS: Final = 16
"""Under way on one connection; the next wait until some are done, and no more are read."""
_MAX_REQUEST_BYTES: Final = 16 << 20
"""What these take, but for the last of them."""
_PAGE_BYTES: Final = 256
_MESSAGE_BYTES: Final = 2048
_HELLO_S: Final = 10.0
_OUT_BYTES: Final = 8 << 20
"""Most that waits for a client that does not read: three of the largest replies."""
SERVER: Final = "kvtier-store/0.1"

_Request = m.Get | m.Hold | m.Put | m.Delete
"""What may take its time."""


class Admission(Protocol):
    """What a session asks of the server that accepted it."""

    def admit(self, session: Session) -> tuple[Store, Pool]:
        """The pool that the session's listener stands for, if it may be used now. Raises Refusal."""

    def leave(self, session: Session) -> None:
        """The connection is closed. Called once."""

    def forget(self, session: Session) -> None:
        """The connection is closed, and none of its requests is under way. Called once."""


class Session:
    """One connection. Event loop thread only."""

    def __init__(self, sock: socket.socket, admission: Admission, volume_id: str, pod: str, closer: Closer) -> None:
        """`pod` names whom holds belong to; `closer` closes what its clients sent."""
        self.volume_id, self.pod = volume_id, pod
        self.pool: Pool | None = None
        """Set once the hello was accepted."""
        self._admission, self._closer = admission, closer
        self._store: Store | None = None
        self._staging: Staging | None = None
        self._announcer: Announcer | None = None
        self._requests = self._request_bytes = 0
        self._waiting: deque[m.ToAgent] = deque()
        """What was read together with the last that may be under way, in order."""
        self._waiting_bytes = 0
        self._ended = False
        self._tasks = Tasks()
        self._channel: Channel[m.ToAgent] = Channel(
            sock,
            m.ToAgent,
            self._received,
            self._closed,
            on_malformed=self._malformed,
            out_limit=_OUT_BYTES,
            closer=closer,
        )
        self._hello_timer = asyncio.get_running_loop().call_later(_HELLO_S, self._channel.close, "no hello came")

    @property
    def memory(self) -> int:
        """Bytes that are kept for the client's side of the connection, and about what its requests take."""
        return self._channel.memory + self._request_bytes + self._waiting_bytes

    @property
    def is_open(self) -> bool:
        """Whether the connection stands."""
        return not self._channel.closed

    @property
    def announcer(self) -> Announcer | None:
        """What tells the client of chunks, once its hello was accepted and until it is closed."""
        return None if self._channel.closed else self._announcer

    def end(self, refusal: Refusal) -> None:
        """Say why, and close. Puts that are under way store nothing more."""
        self._ended = True
        self._channel.send(m.Refused(refusal.code, refusal.message))
        self._channel.close_when_sent(str(refusal))

    def _closed(self, reason: str) -> None:
        self._hello_timer.cancel()
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._staging is not None:
            self._staging.done()
            self._staging = None
        log("session.closed", pod=self.pod, reason=reason)
        self._admission.leave(self)
        if not self._requests:
            self._admission.forget(self)

    def _malformed(self, reason: str) -> None:
        self._channel.send(m.Refused(m.RefusalCode.MALFORMED, reason))

    def _received(self, message: m.ToAgent) -> None:
        if self._waiting or self._is_busy():
            self._waiting.append(message)
            self._waiting_bytes += _size_of(message)
        else:
            self._dispatch(message)

    def _is_busy(self) -> bool:
        return self._requests >= _MAX_REQUESTS or self._request_bytes >= _MAX_REQUEST_BYTES

    def _go_on(self) -> None:
        """A request is done: begin those that wait, as far as there is room, and then read again."""
        while self._waiting and not self._is_busy():
            message = self._waiting.popleft()
            self._waiting_bytes -= _size_of(message)
            self._dispatch(message)
        if not self._is_busy():
            self._channel.resume()

    def _dispatch(self, message: m.ToAgent) -> None:
        try:
            self._handle(message)
        except Refusal as refusal:
            self._channel.send(m.Refused(refusal.code, refusal.message, getattr(message, "request_id", 0)))
            if isinstance(message, m.Hello | m.Report) or self.pool is None:
                self._channel.close_when_sent(str(refusal))
        except BaseException as error:
            self._broken(error)
            raise

    def _broken(self, error: BaseException) -> None:
        """A request met a defect. One of the index, which is no Exception, ends the store."""
        self._channel.close("internal error")
        if self._store is not None and not isinstance(error, Exception | asyncio.CancelledError):
            self._store.fail(error)

    def _handle(self, message: m.ToAgent) -> None:
        pool, store, announcer = self.pool, self._store, self._announcer
        if isinstance(message, m.Hello):
            self._hello(message)
            return
        if pool is None or store is None or announcer is None:
            raise Refusal(m.RefusalCode.MALFORMED, "the first frame has to be a hello")
        announcer.heard()
        if isinstance(message, m.Get):
            self._get(store, pool, message)
        elif isinstance(message, m.Lookup):
            self._channel.send(store.gets.lookup(pool, message))
        elif isinstance(message, m.Release):
            pool.holds.release(self.pod, message.hold_id)
            pool.progress.fire()
        elif isinstance(message, m.Put):
            self._put(store, pool, message)
        else:
            self._handle_rare(store, pool, message)

    def _handle_rare(
        self, store: Store, pool: Pool, message: m.Stage | m.Hold | m.Prefetch | m.Delete | m.Pin | m.Report
    ) -> None:
        if isinstance(message, m.Stage):
            self._stage(message)
        elif isinstance(message, m.Hold):
            self._start(message, store.gets.hold(pool, self.pod, message))
        elif isinstance(message, m.Prefetch):
            self._channel.send(store.gets.prefetch(pool, message))
        elif isinstance(message, m.Delete):
            self._start(message, store.edits.delete(pool, message))
        elif isinstance(message, m.Pin):
            self._channel.send(store.edits.pin(pool, message))
        else:
            store.report(pool, message)

    def _hello(self, hello: m.Hello) -> None:
        if self.pool is not None:
            raise Refusal(m.RefusalCode.MALFORMED, "a second hello")
        lowest, highest = m.PROTOCOL_VERSIONS
        version = min(highest, hello.versions[1])
        if version < max(lowest, hello.versions[0]):
            raise Refusal(
                m.RefusalCode.VERSION,
                f"the client speaks versions {hello.versions[0]} to {hello.versions[1]}, this store {lowest} to "
                f"{highest}; install a client at most one minor release away",
            )
        self._store, self.pool = self._admission.admit(self)
        self._hello_timer.cancel()
        self._announcer = Announcer(self._channel, self._store, self.pool)
        grant = self.pool.grant
        assert grant is not None
        name = f"{grant.namespace}/{grant.name}" if grant.namespace else grant.name
        log("session.opened", pod=self.pod, client=hello.client[:80], pool=name)
        self._channel.send(m.HelloReply(version, SERVER, name, grant.uid))
        self._announcer.ahead(self._store.chunk_ids(self.pool))

    def _stage(self, message: m.Stage) -> None:
        fd = self._channel.take_fd()
        if fd is None:
            raise Refusal(m.RefusalCode.BAD_STAGING, "no descriptor came with the staging")
        staging = Staging(fd, message.bytes, lambda: not self._ended, self._closer)
        if self._staging is not None:
            self._staging.done()
        self._staging = staging
        self._channel.send(m.Done(message.request_id))

    def _put(self, store: Store, pool: Pool, message: m.Put) -> None:
        if self._staging is None:
            raise Refusal(m.RefusalCode.BAD_STAGING, "stage memory before the first put")
        self._start(message, store.puts.put(pool, self._staging, message))

    def _get(self, store: Store, pool: Pool, message: m.Get) -> None:
        answer = store.gets.get_nowait(pool, self.pod, message)
        if isinstance(answer, Part):
            self._send_part(answer)
        else:
            parts = store.gets.get_parts(pool, self.pod, message, answer, self._send_part)
            self._start(message, parts)

    def _send_part(self, part: Part) -> None:
        """Send places, after the descriptors that they need. Raises Refusal."""
        assert self.pool is not None
        assert self._announcer is not None
        if self._channel.closed:  # what was held for the client would only lapse
            self.pool.holds.release(self.pod, part.reply.hold_id)
            return
        try:
            self._announcer.before_reply(part.chunks)
        except OSError as error:
            self.pool.holds.release(self.pod, part.reply.hold_id)
            raise Refusal(m.RefusalCode.UNAVAILABLE, f"the arena cannot be opened: {error.strerror}") from error
        self._channel.send(part.reply)

    def _start(self, message: _Request, work: Awaitable[msgspec.Struct | None]) -> None:
        size = _size_of(message)
        self._requests += 1
        self._request_bytes += size
        if self._is_busy():
            self._channel.pause()
        self._tasks.start("request", self._answer(message.request_id, size, work))

    async def _answer(self, request_id: int, size: int, work: Awaitable[msgspec.Struct | None]) -> None:
        """Send what `work` returns, unless it has answered itself."""
        reply: msgspec.Struct | None
        try:
            reply = await work
        except Refusal as refusal:
            reply = m.Refused(refusal.code, refusal.message, request_id)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the task's own report names it
            self._broken(error)
            raise
        finally:
            self._requests -= 1
            self._request_bytes -= size
            if self._channel.closed and not self._requests:
                self._admission.forget(self)
        if self._channel.closed:
            if isinstance(reply, m.HoldReply) and self.pool is not None:
                self.pool.holds.release(self.pod, reply.hold_id)
        elif reply is not None:
            self._channel.send(reply)
        self._go_on()


def _size_of(message: m.ToAgent) -> int:
    """About the bytes that a message takes, decoded, until it is answered."""
    pages = len(message.pages) if isinstance(message, m.Put | m.Lookup | m.Get | m.Hold | m.Prefetch) else 0
    hashes = 0 if isinstance(message, m.Hello | m.Release | m.Stage | m.Put | m.Report) else len(message.hashes.packed)
    return _MESSAGE_BYTES + pages * _PAGE_BYTES + 4 * hashes
