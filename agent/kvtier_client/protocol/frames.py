"""Frames: a 32-bit little-endian length, then one MessagePack message of at most 4 MiB.

Pure: bytes in, messages out. Sockets are the callers' business. The format's page: docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES: Final = 4 << 20
LENGTH: Final = struct.Struct("<I")

Message = TypeVar("Message")

_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """The peer sent what is not a frame of this protocol. Close the connection."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """The frame that carries `message`.

    Raises FrameError when it would exceed MAX_FRAME_BYTES.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        kind = type(message).__name__
        raise FrameError(f"a {kind} of {len(body)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[Message]):
    """Cuts a byte stream into messages of one union of types. Not thread-safe."""

    def __init__(self, union: Any) -> None:
        """`union` is the type (a union of tagged structs) of the messages that may arrive."""
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet; 0 between frames."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield each message that `data` completes.

        Raises FrameError on an oversized frame or one that does not decode; the decoder is then spent.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[LENGTH.size : end])
            del self._buffer[:end]
            try:
                message = self._decoder.decode(body)
            except msgspec.DecodeError as error:
                raise FrameError(f"malformed frame: {error}") from error
            yield message
