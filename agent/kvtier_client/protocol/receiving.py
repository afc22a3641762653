"""Bytes from a socket, and the descriptors beside them, into memory that is used again and again."""

from __future__ import annotations

import array
import socket
from typing import Final, NamedTuple

MAX_DESCRIPTORS: Final = 253
"""The kernel's limit beside one message."""
_CMSG_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_TRUNCATED: Final = int(socket.MSG_CTRUNC)
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class Received(NamedTuple):
    """What one receive brought."""

    size: int
    """Bytes; 0: the peer closed."""
    descriptors: list[int]
    """Whoever receives them owns them."""
    dropped: bool
    """The kernel had no room for some descriptors."""


def room_for(descriptors: int) -> int:
    """Bytes beside a message that hold so many."""
    return socket.CMSG_SPACE(descriptors * _DESCRIPTOR_BYTES)


MOST_ROOM: Final = room_for(MAX_DESCRIPTORS)


def receive_into(sock: socket.socket, buffer: memoryview, room: int = MOST_ROOM) -> Received:
    """Receive what is there, or wait for it, as the socket does. Raises OSError as `recvmsg` does."""
    size, ancillary, flags, _ = sock.recvmsg_into([buffer], room, _CMSG_CLOEXEC)
    if not ancillary:
        return Received(size, [], bool(flags & _TRUNCATED))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
    return Received(size, list(descriptors), bool(flags & _TRUNCATED))
