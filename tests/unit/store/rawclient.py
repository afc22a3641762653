"""A client of the wire protocol with nothing on top: blocking, one request at a time."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtier_client.protocol import messages as m
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.places import TIERS, unpack_places

LAYOUT = b"L" * 32
STAGING_BYTES = 8 << 20
FIRST_PAGE = m.WHOLE_BLOCK[0]


@dataclass(frozen=True)
class Place:
    """Where a held page lies."""

    chunk: int
    offset: int
    size: int
    generation_offset: int
    generation: int
    tier: m.Tier


@dataclass(frozen=True)
class Held:
    """A get's answer, or a part of it."""

    blocks: int
    places: list[Place]
    hold_id: int
    hold_ms: int
    more: bool


def held_of(reply: m.GetReply) -> Held:
    places = [Place(*place[:5], TIERS[place[5]]) for place in unpack_places(reply.places)]
    return Held(reply.blocks, places, reply.hold_id, reply.hold_ms, reply.more)


class RawClient:
    """One connection that has said hello, with staging."""

    def __init__(self, path: Path | str, *, hello: bool = True, timeout_s: float = 30.0) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout_s)
        try:
            self.sock.connect(str(path))
        except OSError:
            self.sock.close()
            raise
        self._decoder: FrameDecoder[Any] = FrameDecoder(m.ToClient)
        self._messages: list[Any] = []
        self._fds: list[int] = []
        self._ids = itertools.count(1)
        self.chunks: dict[int, mmap.mmap] = {}
        self.chunk_fds: dict[int, int] = {}
        self.gone: set[int] = set()
        self.staging: mmap.mmap | None = None
        self.greeting: Any = None
        if hello:
            try:
                self.greeting = self.ask(m.Hello(m.PROTOCOL_VERSIONS, "raw"))
            except OSError:
                self.sock.close()
                raise

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        if fds:
            socket.send_fds(self.sock, [encode_frame(message)], list(fds))
        else:
            self.sock.sendall(encode_frame(message))

    def receive(self) -> Any:
        """The next message; chunks are taken in on the way. None: the store closed."""
        while True:
            while self._messages:
                message = self._messages.pop(0)
                if not isinstance(message, m.Chunks):
                    return message
                self._map(message)
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 253)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._fds += fds
            self._messages += self._decoder.feed(data)

    def ask(self, message: Any, fds: Sequence[int] = ()) -> Any:
        self.send(message, fds)
        return self.receive()

    def stage(self, size: int = STAGING_BYTES) -> Any:
        fd = sealed_memfd(size)
        self.staging = mmap.mmap(fd, size)
        reply = self.ask(m.Stage(next(self._ids), size), [fd])
        os.close(fd)
        return reply

    def send_put(
        self,
        parent: bytes | None,
        blocks: Sequence[tuple[bytes, bytes]],
        *,
        page: m.PageId = FIRST_PAGE,
        layout: bytes = LAYOUT,
        **more: Any,
    ) -> None:
        """Ask for a put of blocks of one page each."""
        if self.staging is None:
            self.stage()
        assert self.staging is not None
        at, pages = 0, []
        for hash_, data in blocks:
            self.staging[at : at + len(data)] = data
            pages.append(m.PutPage(hash_, at, len(data), page))
            at += len(data)
        self.send(m.Put(next(self._ids), layout, parent, pages, **more))

    def put(self, parent: bytes | None, blocks: Sequence[tuple[bytes, bytes]], **more: Any) -> Any:
        """Put blocks of one page each."""
        self.send_put(parent, blocks, **more)
        return self.receive()

    def lookup(self, hashes: Sequence[bytes], *, layout: bytes = LAYOUT, **more: Any) -> Any:
        return self.ask(m.Lookup(next(self._ids), layout, m.HashList.of(hashes), **more))

    def get(self, hashes: Sequence[bytes], *, deadline_ms: int = 20_000, layout: bytes = LAYOUT, **more: Any) -> Any:
        reply = self.ask(m.Get(next(self._ids), layout, m.HashList.of(hashes), deadline_ms, **more))
        return held_of(reply) if isinstance(reply, m.GetReply) else reply

    def hold(self, hashes: Sequence[bytes], *, deadline_ms: int = 20_000, layout: bytes = LAYOUT, **more: Any) -> Any:
        return self.ask(m.Hold(next(self._ids), layout, m.HashList.of(hashes), deadline_ms, **more))

    def delete(self, hashes: Sequence[bytes], *, layout: bytes = LAYOUT) -> Any:
        return self.ask(m.Delete(next(self._ids), layout, m.HashList.of(hashes)))

    def pin(self, hashes: Sequence[bytes], seconds: int, *, layout: bytes = LAYOUT) -> Any:
        return self.ask(m.Pin(next(self._ids), layout, m.HashList.of(hashes), seconds))

    def read(self, place: Place) -> bytes | None:
        """A held page's bytes; None: the slot has another generation by now."""
        memory = self.chunks[place.chunk]
        data = memory[place.offset : place.offset + place.size]
        generation = int.from_bytes(memory[place.generation_offset : place.generation_offset + 8], "little")
        return data if generation == place.generation else None

    def read_all(self, hashes: Sequence[bytes], **more: Any) -> list[bytes | None]:
        """Get, read and release."""
        reply = self.get(hashes, **more)
        data = [self.read(place) for place in reply.places]
        self.release(reply)
        return data

    def push_out(self, blocks: Sequence[tuple[bytes, bytes]]) -> None:
        """Store other chains of such pages until these blocks are in DRAM no more, but on nvme."""
        for number in range(10):
            if not self.lookup(hashes_of(blocks)).dram_blocks:
                return
            filler = chain(f"filler-{number}", 32, size=len(blocks[0][1]))
            assert self.put(None, filler, reach=m.Reach.SEALED).stored_pages == 32
        raise AssertionError("they stay in DRAM")

    def release(self, reply: Any) -> None:
        self.send(m.Release(reply.hold_id))

    def close(self) -> None:
        self.sock.close()
        for memory in self.chunks.values():
            memory.close()
        for fd in self.chunk_fds.values():
            os.close(fd)
        if self.staging is not None:
            self.staging.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _map(self, message: m.Chunks) -> None:
        self.gone.update(message.gone)
        for id_ in message.ids:
            fd = self._fds.pop(0)
            self.chunks[id_] = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
            self.chunk_fds[id_] = fd


def sealed_memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) -> int:
    fd = os.memfd_create("staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def chain(seed: str, blocks: int, size: int = 65_536) -> list[tuple[bytes, bytes]]:
    """Hashes and contents of a chain that `seed` names."""
    made = []
    for number in range(blocks):
        hash_ = f"{seed}/{number}".encode().ljust(32, b".")
        made.append((hash_, content(hash_, size)))
    return made


def content(hash_: bytes, size: int) -> bytes:
    """Bytes that tell which block they belong to at every place."""
    return (hash_ * (size // len(hash_) + 1))[:size]


def hashes_of(blocks: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [hash_ for hash_, _ in blocks]


def data_of(blocks: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [data for _, data in blocks]
