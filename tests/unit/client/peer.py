"""Agents that do what a test says, on a real Unix socket: the store never hangs or lies on demand."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.messages import (
    Chunks,
    Delete,
    Done,
    Get,
    GetReply,
    Hello,
    HelloReply,
    Hold,
    HoldReply,
    Lookup,
    LookupReply,
    PageId,
    Pin,
    PinReply,
    Prefetch,
    PrefetchReply,
    Put,
    PutReply,
    Reach,
    Release,
    Stage,
    ToAgent,
)
from kvtier_client.protocol.places import PagePlace, needed_pages, pack_places

LAYOUT = bytes(range(32))
WELCOME = HelloReply(1, "scripted", "default/demo", "uid-1")


def open_descriptors() -> int:
    """How many this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def chain(count: int, salt: int = 0) -> list[bytes]:
    """Hashes of a chain that no engine made."""
    return [bytes([salt]) * 28 + struct.pack(">I", i) for i in range(count)]


class Gone(Exception):
    """The client closed the connection."""


class Link:
    """The agent's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.descriptors: list[int] = []
        self.stopped = threading.Event()
        self._decoder: FrameDecoder[ToAgent] = FrameDecoder(ToAgent)
        self._inbox: list[ToAgent] = []

    def receive(self) -> Any:
        while not self._inbox:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 16, 16)
            except OSError as error:
                raise Gone from error
            if not data:
                raise Gone
            self.descriptors += descriptors
            self._inbox += self._decoder.feed(data)
        return self._inbox.pop(0)

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.sock, [encode_frame(message)], list(descriptors))

    def welcome(self) -> Hello:
        hello = self.receive()
        assert isinstance(hello, Hello)
        self.send(WELCOME)
        return hello


Script = Callable[[Link], None]


class ScriptedAgent:
    """Listens, and runs `script` in a thread for each connection; closes what the script leaves."""

    def __init__(self, path: Path, script: Script, backlog: int = 16) -> None:
        self.path = path
        self.script = script
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._links: list[Link] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End as a killed process does: every socket closed, the path left behind."""
        with contextlib.suppress(OSError):  # already stopped
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.stopped.set()
            with contextlib.suppress(OSError):
                link.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            link = Link(sock)
            self._links.append(link)
            thread = threading.Thread(target=self._run, args=(link,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, link: Link) -> None:
        with link.sock:
            try:
                self.script(link)
            except (Gone, OSError):
                return
            finally:
                for descriptor in link.descriptors:
                    os.close(descriptor)


class ArenaScript:
    """A script that stores pages in one chunk file and can be told to overwrite them."""

    SLOT = 8192
    SLOTS = 64

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.releases: list[int] = []
        self.staged_seals: int | None = None
        self.requests: list[Any] = []
        self.holds = 0
        self.pages: dict[tuple[bytes, int, int], PagePlace] = {}
        self.part_blocks = 2
        """Blocks in each part of a streamed answer."""
        self.before_part: Callable[[int], None] = lambda _: None
        """Called with the number of the part before it is sent."""
        self.reached: Callable[[Put], Reach | None] = lambda _: Reach.DRAM
        """How far a put gets."""
        self.new_chunk(1)

    def new_chunk(self, chunk_id: int) -> None:
        """Start on another file, as a store that was replaced without adoption would."""
        self.chunk_id = chunk_id
        path = self.folder / f"chunk-{len(list(self.folder.glob('chunk-*')))}"
        with path.open("w+b") as file:
            file.truncate(self.SLOT * self.SLOTS)
            self.arena = mmap.mmap(file.fileno(), 0)
        self.descriptor = os.open(path, os.O_RDONLY)
        self.pages.clear()

    @property
    def puts(self) -> list[Put]:
        return [request for request in self.requests if isinstance(request, Put)]

    @property
    def gets(self) -> list[Get]:
        return [request for request in self.requests if isinstance(request, Get)]

    def overwrite(self, page_hash: bytes, shard: int = 0, group: int = 0) -> None:
        """Reuse the page's slot for other bytes, generation first."""
        place = self.pages[page_hash, group, shard]
        struct.pack_into("<Q", self.arena, place.generation_offset, place.generation + 1)
        self.arena[place.offset : place.offset + place.size] = b"\xee" * place.size

    def __call__(self, link: Link) -> None:
        link.welcome()
        announced: set[int] = set()
        staging: mmap.mmap | None = None
        while True:
            request = link.receive()
            self.requests.append(request)
            match request:
                case Get() as ask:
                    if self.descriptor not in announced:
                        link.send(Chunks([self.chunk_id]), [self.descriptor])
                        announced.add(self.descriptor)
                    self._answer_get(link, ask)
                case Stage() as stage:
                    descriptor = link.descriptors.pop()
                    self.staged_seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
                    staging = mmap.mmap(descriptor, stage.bytes, prot=mmap.PROT_READ)
                    os.close(descriptor)
                    link.send(Done(stage.request_id))
                case Put() as put:
                    assert staging is not None
                    for page in put.pages:
                        self._store(page.hash, page.page, staging[page.offset : page.offset + page.size])
                    link.send(PutReply(put.request_id, len(put.pages), 0, self.reached(put)))
                case _:
                    for reply in self._replies(request):
                        link.send(reply)

    def _replies(self, request: Any) -> Iterator[msgspec.Struct]:
        match request:
            case Lookup() as ask:
                whole = self._whole(ask.hashes.split(), ask.pages)
                yield LookupReply(ask.request_id, whole, whole, whole)
            case Prefetch() as ask:
                yield PrefetchReply(ask.request_id, self._whole(ask.hashes.split(), ask.pages))
            case Hold() as ask:
                self.holds += 1
                yield HoldReply(ask.request_id, self._whole(ask.hashes.split(), ask.pages), self.holds, 5_000)
            case Release(hold):
                self.releases.append(hold)
            case Delete() as ask:
                for key in [key for key in self.pages if key[0] in ask.hashes.split()]:
                    del self.pages[key]
                yield Done(ask.request_id)
            case Pin() as ask:
                yield PinReply(ask.request_id, self._whole(ask.hashes.split(), [PageId()]))

    def _answer_get(self, link: Link, ask: Get) -> None:
        hashes = ask.hashes.split()
        whole = self._whole(hashes, ask.pages)
        if not ask.hold_id:
            self.holds += 1
        hold = ask.hold_id or self.holds
        step = self.part_blocks if ask.stream else max(whole, 1)
        parts = [hashes[at : min(at + step, whole)] for at in range(0, whole, step)] or [[]]
        for number, part in enumerate(parts):
            self.before_part(number)
            places = [
                self.pages[part[block], page.group, page.shard] for block, page in needed_pages(len(part), ask.pages)
            ]
            more = number + 1 < len(parts)
            link.send(GetReply(ask.request_id, len(part), pack_places(places), hold, 5_000, more))

    def _whole(self, hashes: Sequence[bytes], pages: Sequence[PageId]) -> int:
        """The longest prefix of which everything is there that it needs."""
        return max(
            count
            for count in range(len(hashes) + 1)
            if all((hashes[block], page.group, page.shard) in self.pages for block, page in needed_pages(count, pages))
        )

    def _store(self, page_hash: bytes, page: PageId, data: bytes) -> None:
        slot = len(self.pages) * self.SLOT
        assert len(data) <= self.SLOT - 4096
        self.arena[slot + 4096 : slot + 4096 + len(data)] = data
        struct.pack_into("<Q", self.arena, slot, 7)
        self.pages[page_hash, page.group, page.shard] = PagePlace(self.chunk_id, slot + 4096, len(data), slot, 7, 0)
