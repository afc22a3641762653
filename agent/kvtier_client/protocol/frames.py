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
        self._partial = bytearray()
        self._awaited = LENGTH.size
        """Bytes that the partial frame needs before it can be looked at again."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet; 0 between frames."""
        return len(self._partial)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Message]:
        """Yield each message that `data` completes; exhaust it before `data` changes and before the next call.

        Raises FrameError on an oversized frame or one that does not decode; the decoder is then spent.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._awaited:
                return
            data, self._partial = self._partial, bytearray()
        view = memoryview(data)
        begin, end = 0, LENGTH.size
        while end <= len(view):
            (length,) = LENGTH.unpack_from(view, begin)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            end += length
            if end > len(view):
                break
            yield self._decode(view[end - length : end])
            begin, end = end, end + LENGTH.size
        if begin < len(view):
            self._partial += view[begin:]
            self._awaited = end - begin

    def _decode(self, body: memoryview) -> Message:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise FrameError(f"malformed frame: {error}") from error
