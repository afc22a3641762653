"""One connection to the agent: hello, handover, and one request at a time."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

from . import sockets
from .arena import Chunk, ChunkMappings
from .failures import CLOSED, PROTOCOL, Deadline, Failure, RequestRefused, failing_as
from .protocol.frames import FrameDecoder, FrameError, encode_frame
from .protocol.messages import (
    MAX_CHUNKS,
    PROTOCOL_VERSIONS,
    Chunks,
    Done,
    Get,
    GetReply,
    Handover,
    Hello,
    HelloReply,
    Lookup,
    LookupReply,
    PagePlace,
    Put,
    PutReply,
    Refused,
    Release,
    Stage,
    ToClient,
)
from .staging import Staging

READ_BYTES: Final = 64 << 10
RELEASE_DEADLINE_S: Final = 0.1

Request = Lookup | Get | Stage | Put
Reply = TypeVar("Reply", LookupReply, GetReply, PutReply, Done)


def client_name() -> str:
    """This client's name and version, for the agent's log."""
    try:
        return f"kvtier/{metadata.version('kvtier')}"
    except metadata.PackageNotFoundError:
        return "kvtier"


class Connection:
    """A connection that has passed its hello. Used by one thread at a time.

    After a Failure other than RequestRefused it must be closed.
    """

    def __init__(self, sock: socket.socket, mappings: ChunkMappings) -> None:
        self._sock = sock
        self._mappings = mappings
        self._decoder: FrameDecoder[ToClient] = FrameDecoder(ToClient)
        self._inbox: deque[ToClient] = deque()
        self._descriptors: deque[int] = deque()
        self._chunks: dict[int, Chunk] = {}
        self.closed = False
        self.staging: Staging | None = None
        """What the agent was last offered here."""
        self.due_releases: list[int] = []
        """Holds to give back when the connection is next free."""

    @classmethod
    def open(cls, path: Path, mappings: ChunkMappings, deadline: Deadline) -> Connection:
        """Connect to the socket at `path`, follow a handover, and agree on a version.

        Raises Failure.
        """
        connection = cls(sockets.connect(path, deadline), mappings)
        try:
            answer = connection._greet(deadline)
            if isinstance(answer, Handover):
                handed = connection._handed_over(deadline)
                connection.close()
                connection = cls(handed, mappings)
                answer = connection._greet(deadline)
            if not isinstance(answer, HelloReply):
                raise Failure(PROTOCOL, f"the agent answered a hello with {type(answer).__name__}")
            if not PROTOCOL_VERSIONS[0] <= answer.version <= PROTOCOL_VERSIONS[1]:
                raise Failure(PROTOCOL, f"the agent chose version {answer.version}, which was not offered")
        except BaseException:
            connection.close()
            raise
        return connection

    def request(
        self, message: Request, answer: type[Reply], deadline: Deadline, descriptors: Sequence[int] = ()
    ) -> Reply:
        """Send one request and wait for its `answer`.

        Raises RequestRefused when the agent refuses it, Failure on anything else.
        """
        self._send(encode_frame(message), deadline, descriptors)
        reply = self._receive(deadline)
        if isinstance(reply, Refused) and reply.request_id == message.request_id:
            raise RequestRefused(reply.code, reply.message)
        if isinstance(reply, Refused):
            raise Failure(f"refused:{reply.code}", f"the agent refused ({reply.code}): {reply.message}")
        if not isinstance(reply, answer) or reply.request_id != message.request_id:
            raise Failure(PROTOCOL, f"the agent answered a {type(message).__name__} with {type(reply).__name__}")
        return reply

    def chunk_of(self, place: PagePlace) -> Chunk:
        """The mapped chunk that holds `place`.

        Raises Failure when the agent named what it did not send, or a place outside.
        """
        chunk = self._chunks.get(place.chunk)
        if chunk is None or not chunk.holds(place):
            raise Failure(PROTOCOL, f"the agent named a place outside its chunks: {place}")
        return chunk

    def send_due_releases(self) -> None:
        """Give back the holds that are due.

        Raises Failure.
        """
        due, self.due_releases = self.due_releases, []
        if due:
            frames = b"".join(encode_frame(Release(hold)) for hold in due)
            self._send(frames, Deadline(RELEASE_DEADLINE_S), ())

    def is_alive(self) -> bool:
        """Whether an idle connection still stands; takes in what the agent sent meanwhile. Does not block."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        try:
            while poll.poll(0) and not self._next_message():
                self._read(Deadline(RELEASE_DEADLINE_S))
            return self._next_message() is None
        except Failure:
            return False

    def close(self) -> None:
        """Close the socket and every descriptor that nothing took. May be repeated."""
        self.closed = True
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _greet(self, deadline: Deadline) -> ToClient:
        self._send(encode_frame(Hello(PROTOCOL_VERSIONS, client_name())), deadline, ())
        answer = self._receive(deadline)
        if isinstance(answer, Refused):
            raise Failure(f"refused:{answer.code}", f"the agent refused ({answer.code}): {answer.message}")
        return answer

    def _handed_over(self, deadline: Deadline) -> socket.socket:
        if len(self._descriptors) != 1:
            raise Failure(PROTOCOL, f"a handover came with {len(self._descriptors)} descriptors instead of 1")
        descriptor = self._descriptors.popleft()
        with failing_as(deadline, PROTOCOL):
            try:
                handed = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)
                raise
        if (handed.family, handed.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            handed.close()
            raise Failure(PROTOCOL, "a handover came with a descriptor that is no Unix stream socket")
        return handed

    def _send(self, data: bytes, deadline: Deadline, descriptors: Sequence[int]) -> None:
        sockets.send(self._sock, data, descriptors, deadline, CLOSED)

    def _receive(self, deadline: Deadline) -> ToClient:
        while (message := self._next_message()) is None:
            self._read(deadline)
        self._inbox.popleft()
        return message

    def _next_message(self) -> ToClient | None:
        """What the agent says next, left in the inbox; chunks before it are taken in, those after it are not yet.

        A chunk that went right after a reply still serves that reply's places.
        """
        while self._inbox:
            message = self._inbox[0]
            if not isinstance(message, Chunks):
                return message
            self._inbox.popleft()
            self._take_chunks(message)
        return None

    def _read(self, deadline: Deadline) -> None:
        with failing_as(deadline, CLOSED):
            self._sock.settimeout(deadline.remaining())
            data, descriptors, dropped = sockets.receive(self._sock, READ_BYTES)
        self._descriptors += descriptors
        if dropped:
            raise Failure(PROTOCOL, "descriptors were lost on the way; is the limit on open files too low?")
        if not data:
            raise Failure(CLOSED, "the agent closed the connection")
        try:
            self._inbox += self._decoder.feed(data)
        except FrameError as error:
            raise Failure(PROTOCOL, str(error)) from error
        named = sum(map(_descriptors_named, self._inbox))
        if len(self._descriptors) > named and not self._decoder.pending_bytes:
            raise Failure(PROTOCOL, f"the agent sent {len(self._descriptors)} descriptors, and named {named}")

    def _take_chunks(self, message: Chunks) -> None:
        if len(message.ids) > min(MAX_CHUNKS, len(self._descriptors)):
            raise Failure(PROTOCOL, f"{len(message.ids)} chunks came with {len(self._descriptors)} descriptors")
        for gone in message.gone:
            self._chunks.pop(gone, None)
        for chunk_id in message.ids:
            descriptor = self._descriptors.popleft()
            try:
                self._chunks[chunk_id] = self._mappings.map(descriptor)
            finally:
                os.close(descriptor)


def _descriptors_named(message: ToClient) -> int:
    """How many descriptors lie beside the message."""
    if isinstance(message, Chunks):
        return len(message.ids)
    return 1 if isinstance(message, Handover) else 0
