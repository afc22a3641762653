"""A framed Unix stream socket on the event loop, with descriptors beside frames.

Bounded: a peer that does not read is closed once `out_limit` bytes wait for it; a peer that sends
descriptors which no frame takes is closed too, and so is one of whose descriptors too many wait to be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from kvtier_client.protocol.frames import FrameDecoder, FrameError, encode_frame
from kvtier_client.protocol.receiving import MOST_ROOM, receive_into

from .closer import Closer

_RECEIVE_BYTES: Final = 96 << 10
"""Read in one go: a request of 2,048 hashes; no more, so that one busy peer does not keep the loop from the others."""

_FDS_ROOM: Final = MOST_ROOM
"""For all descriptors that can lie beside what is read in one go: for what finds no room the kernel does the last close
at once, however long that lasts."""
_buffer: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Of all channels: what is read is decoded, or copied, before the loop goes on."""

Message = TypeVar("Message")


class Channel(Generic[Message]):
    """One connection. Event loop thread only; every callback runs there.

    `on_close` is called exactly once, with the reason; no callback follows it. `on_malformed` comes before
    the close, and may still send.
    """

    def __init__(
        self,
        sock: socket.socket,
        union: Any,
        on_message: Callable[[Message], None],
        on_close: Callable[[str], None],
        *,
        on_malformed: Callable[[str], None] | None = None,
        out_limit: int = 16 << 20,
        fd_limit: int = 4,
        closer: Closer | None = None,
    ) -> None:
        """`closer` closes the socket and what came over it; None: the peer is trusted, and it is done here."""
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._decoder: FrameDecoder[Message] = FrameDecoder(union)
        self._on_message, self._on_close, self._on_malformed = on_message, on_close, on_malformed
        self._out: deque[tuple[bytes | memoryview, list[int]]] = deque()
        self._out_bytes, self._out_limit = 0, out_limit
        self._partial_bytes = 0
        self._fds: deque[int] = deque()
        self._fd_limit, self._closer = fd_limit, closer
        self._reading = self._writing = False
        self.closed = False
        self.resume()

    @property
    def idle(self) -> bool:
        """Whether all that was sent is with the kernel."""
        return not self._out

    @property
    def memory(self) -> int:
        """Bytes kept for the peer: what it does not read, and what it has not finished to send."""
        return self._out_bytes + self._partial_bytes

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Send, or queue. Takes `fds` over and closes them; after the close it only does that."""
        if self.closed:
            _close_all(fds)
            return
        data: bytes | memoryview = encode_frame(message)
        if not self._out:
            sent = self._send_now(data, fds)
            if sent is None:
                _close_all(fds)
            if sent is None or sent == len(data):
                return
            data, fds = memoryview(data)[sent:], () if sent else fds
        self._out.append((data, list(fds)))
        self._out_bytes += len(data)
        self._want_writer(True)
        if self._out_bytes > self._out_limit:
            self.close(f"the peer does not read: {self._out_bytes} bytes wait for it")

    def take_fd(self) -> int | None:
        """The descriptor that came beside the message at hand; the caller closes it."""
        return self._fds.popleft() if self._fds else None

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        """Read again."""
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._sock, self._receive)

    def close(self, reason: str) -> None:
        """Close now; what is queued is lost."""
        if self.closed:
            return
        self.pause()
        self.closed = True
        if self._writing:
            self._loop.remove_writer(self._sock)
        for _, fds in self._out:
            _close_all(fds)
        self._out.clear()
        if self._closer is None:
            self._sock.close()
            _close_all(self._fds)
        else:
            self._closer.hang_up(self._sock)
            for fd in self._fds:
                self._closer.close(fd)
        self._fds.clear()
        self._on_close(reason)

    def close_when_sent(self, reason: str) -> None:
        """Close once what is queued has been sent as far as the peer takes it without waiting."""
        if not self.closed and self._out:
            self._flush()
        self.close(reason)

    def _receive(self) -> None:
        if self._closer is not None and self._closer.is_full:
            self.close("too much that its like sent waits to be closed")
            return
        try:
            size, fds, dropped = receive_into(self._sock, _buffer, _FDS_ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error.strerror}")
            return
        self._fds.extend(fds)
        if dropped:
            self.close("descriptors were lost: too many are open")
            return
        if not size:
            self.close("the peer closed")
            return
        self._partial_bytes += size
        try:
            for message in self._decoder.feed(_buffer[:size]):
                self._partial_bytes = 0
                self._on_message(message)
                if self.closed:
                    return
        except FrameError as error:
            if self._on_malformed is not None:
                self._on_malformed(str(error))
            self.close(str(error))
            return
        if len(self._fds) > self._fd_limit:
            self.close("malformed: descriptors that no frame takes")

    def _flush(self) -> None:
        while self._out:
            data, fds = self._out[0]
            sent = self._send_now(data, fds)
            if sent is None:
                return
            self._out_bytes -= sent
            if sent < len(data):
                self._out[0] = (memoryview(data)[sent:], [] if sent else fds)
                return
            self._out.popleft()
        self._want_writer(False)

    def _send_now(self, data: bytes | memoryview, fds: Sequence[int]) -> int | None:
        """How many bytes the kernel took, and all of `fds` with the first; None: the channel had to be closed."""
        try:
            sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.close(f"send failed: {error.strerror}")
            return None
        _close_all(fds)
        return sent

    def _want_writer(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._sock, self._flush)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._sock)
        self._writing = wanted


def _close_all(fds: Sequence[int] | deque[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
