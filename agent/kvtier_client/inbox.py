"""What the agent sent on one connection: frames, and the descriptors beside them. Sockets are the caller's business."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Final

from .arena import ChunkMappings
from .failures import CLOSED, PROTOCOL, Failure
from .placed import ChunkTable
from .protocol.frames import FrameDecoder, FrameError
from .protocol.messages import MAX_CHUNKS, Chunks, Handover, ToClient

_MAX_CHUNK_ID: Final = (1 << 64) - 1


class Inbox:
    """Used by one thread at a time. After a Failure its connection must be closed."""

    def __init__(self, mappings: ChunkMappings) -> None:
        self.chunks = ChunkTable()
        """What the answers read so far may name."""
        self._mappings = mappings
        self._decoder: FrameDecoder[ToClient] = FrameDecoder(ToClient)
        self._messages: deque[ToClient] = deque()
        self._descriptors: deque[int] = deque()

    def feed(self, data: memoryview, descriptors: Sequence[int], dropped: bool) -> None:
        """Take in what one receive brought, descriptors included; `dropped`: the kernel had no room for some.

        Raises Failure.
        """
        self._descriptors += descriptors
        if dropped:
            raise Failure(PROTOCOL, "descriptors were lost on the way; is the limit on open files too low?")
        if not data:
            raise Failure(CLOSED, "the agent closed the connection")
        try:
            self._messages += self._decoder.feed(data)
        except FrameError as error:
            raise Failure(PROTOCOL, str(error)) from error
        if self._descriptors and not self._decoder.pending_bytes:
            named = sum(map(_descriptors_named, self._messages))
            if len(self._descriptors) > named:
                raise Failure(PROTOCOL, f"the agent sent {len(self._descriptors)} descriptors, and named {named}")

    def peek(self) -> ToClient | None:
        """What the agent says next; chunks before it are taken in, those after it are not yet.

        A chunk that went right after an answer still serves that answer's places. Raises Failure.
        """
        while self._messages:
            message = self._messages[0]
            if not isinstance(message, Chunks):
                return message
            self._messages.popleft()
            self._take_chunks(message)
        return None

    def pop(self) -> ToClient | None:
        """As `peek`, and it is taken."""
        message = self.peek()
        if message is not None:
            self._messages.popleft()
        return message

    def take_descriptor(self) -> int:
        """The one descriptor that lies beside the last message. The caller owns it.

        Raises Failure when there is none, or more.
        """
        if len(self._descriptors) != 1:
            raise Failure(PROTOCOL, f"a handover came with {len(self._descriptors)} descriptors instead of 1")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close every descriptor that nothing took. May be repeated."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _take_chunks(self, message: Chunks) -> None:
        if len(message.ids) > min(MAX_CHUNKS, len(self._descriptors)):
            raise Failure(PROTOCOL, f"{len(message.ids)} chunks came with {len(self._descriptors)} descriptors")
        self.chunks.forget(message.gone)
        for number in message.ids:
            descriptor = self._descriptors.popleft()
            try:
                if not 0 <= number <= _MAX_CHUNK_ID:
                    raise Failure(PROTOCOL, f"{number} is no id of a chunk")
                self.chunks.add(number, self._mappings.map(descriptor))
            finally:
                os.close(descriptor)


def _descriptors_named(message: ToClient) -> int:
    """How many descriptors lie beside the message."""
    if isinstance(message, Chunks):
        return len(message.ids)
    return 1 if isinstance(message, Handover) else 0
