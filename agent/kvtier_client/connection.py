"""One connection to the agent, without waiting: what would block says so, and a driver waits in its own way."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from . import sockets
from .arena import ChunkMappings
from .failures import CLOSED, PROTOCOL, Failure
from .inbox import Inbox
from .placed import ChunkTable
from .protocol.frames import encode_frame
from .protocol.messages import Release, ToClient
from .protocol.receiving import receive_into
from .staging import Staging

READ_BYTES: Final = 256 << 10


def client_name() -> str:
    """This client's name and version, for the agent's log."""
    try:
        return f"kvtier/{metadata.version('kvtier')}"
    except metadata.PackageNotFoundError:
        return "kvtier"


class Connection:
    """A non-blocking socket, and what came through it. Used by one thread at a time.

    After a Failure other than RequestRefused it must be closed.
    """

    def __init__(self, sock: socket.socket, mappings: ChunkMappings) -> None:
        """Takes over `sock`."""
        sock.setblocking(False)
        self.sock = sock
        self._inbox = Inbox(mappings)
        self._mappings = mappings
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._request_ids = itertools.count(1)
        self.ready = select.poll()
        """For a driver that polls."""
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self.closed = False
        self.staging: Staging | None = None
        """What the agent was last offered here."""
        self.due_releases: list[int] = []
        """Holds to give back when the connection is next free."""

    @classmethod
    def fresh(cls, mappings: ChunkMappings) -> Connection:
        """One that is not connected yet."""
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), mappings)

    @property
    def chunks(self) -> ChunkTable:
        """What the agent named here."""
        return self._inbox.chunks

    def next_request_id(self) -> int:
        """A number that no request had on this connection."""
        return next(self._request_ids)

    def connect_now(self, path: Path) -> bool:
        """Connect, or False when the backlog is full.

        Raises Failure when nobody listens at `path`.
        """
        return sockets.connect_now(self.sock, path)

    def send_now(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        """Send what fits, with `descriptors` beside the first byte: how many bytes went, 0 where none fit.

        Raises Failure.
        """
        try:
            if descriptors:
                return socket.send_fds(self.sock, [data], descriptors)
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Failure(CLOSED, error.strerror or str(error)) from error

    def received(self) -> ToClient | None:
        """The next of the messages that were read already.

        Raises Failure.
        """
        return self._inbox.pop()

    def receive_now(self) -> ToClient | None:
        """The agent's next message, or None when it is not here yet.

        Raises Failure.
        """
        while (message := self._inbox.pop()) is None:
            if not self._read_now():
                return None
        return message

    def is_alive(self) -> bool:
        """Whether an idle connection still stands; takes in the chunks that the agent sent meanwhile."""
        try:
            while self._readable.poll(0) and self._read_now():  # to ask costs less than a read in vain
                if self._inbox.peek() is not None:
                    return False
            return self._inbox.peek() is None
        except Failure:
            return False

    def send_due_releases(self) -> None:
        """Give back the holds that are due.

        Raises Failure, also when the agent does not take them at once.
        """
        due, self.due_releases = self.due_releases, []
        if due:
            frames = b"".join([encode_frame(Release(hold)) for hold in due])
            if self.send_now(memoryview(frames)) < len(frames):
                raise Failure(CLOSED, "the agent reads no more")

    def handed_over(self) -> Connection:
        """The connection whose descriptor came with a handover. This one is then of no more use.

        Raises Failure.
        """
        descriptor = self._inbox.take_descriptor()
        try:
            handed = socket.socket(fileno=descriptor)
        except OSError as error:
            sockets.close_descriptor(descriptor)
            raise Failure(PROTOCOL, f"a handover: {error.strerror or error}") from error
        if (handed.family, handed.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            handed.close()
            raise Failure(PROTOCOL, "a handover came with a descriptor that is no Unix stream socket")
        return Connection(handed, self._mappings)

    def close(self) -> None:
        """Close the socket and every descriptor that nothing took. May be repeated."""
        self.closed = True
        self.sock.close()
        self._inbox.close()

    def _read_now(self) -> bool:
        """Take in what lies in the socket; False where nothing does."""
        try:
            size, descriptors, dropped = receive_into(self.sock, self._buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Failure(CLOSED, error.strerror or str(error)) from error
        self._inbox.feed(self._buffer[:size], descriptors, dropped)
        return True
