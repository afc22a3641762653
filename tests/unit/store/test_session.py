"""How much one connection may have under way, and what becomes of what it sends beyond that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from kvtier_agent.store import session as session_module
from kvtier_agent.store.closer import Closer
from kvtier_agent.store.core import Pool
from kvtier_agent.store.session import Session
from kvtier_client.protocol import messages as m
from kvtier_client.protocol.frames import FrameDecoder, encode_frame

from tests.unit.store.rawclient import LAYOUT

HASHES = m.HashList.of([b"h" * 32])
MOST = session_module._MAX_REQUESTS


class Holds:
    """Answers holds when told to."""

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Future[None]] = {}
        self.begun: list[int] = []

    def hold(self, pool: Pool, pod: str, message: m.Hold) -> Awaitable[m.HoldReply]:
        del pool, pod
        self.begun.append(message.request_id)
        return self._answer(message)

    async def _answer(self, message: m.Hold) -> m.HoldReply:
        told = self.under_way[message.request_id] = asyncio.get_running_loop().create_future()
        await told
        return m.HoldReply(message.request_id, 0)

    def lookup(self, pool: Pool, message: m.Lookup) -> m.LookupReply:
        del pool
        self.begun.append(message.request_id)
        return m.LookupReply(message.request_id, 0, 0, 0)


class Peer:
    """One connection, and what its requests wait for."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        self.gets = Holds()
        self._decoder: FrameDecoder[Any] = FrameDecoder(m.ToClient)
        self.told: list[str] = []
        self.session = Session(theirs, self, "volume", "pod", Closer())

    def admit(self, session: Session) -> tuple[Any, Any]:
        del session
        pool = SimpleNamespace(uid="uid", grant=SimpleNamespace(namespace="", name="pool", uid="uid"))
        return SimpleNamespace(gets=self.gets, chunk_ids=lambda _: []), pool

    def leave(self, session: Session) -> None:
        del session
        self.told.append("leave")

    def forget(self, session: Session) -> None:
        del session
        self.told.append("forget")

    def finish(self, count: int) -> None:
        """Let so many of the requests under way end, oldest first."""
        for number in [*self.gets.under_way][:count]:
            self.gets.under_way.pop(number).set_result(None)

    async def send(self, *messages: Any) -> None:
        """All in one go."""
        await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(map(encode_frame, messages)))

    async def receive(self, count: int) -> list[Any]:
        """The next messages."""
        async with asyncio.timeout(10):
            return await self._receive(count)

    async def _receive(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += self._decoder.feed(await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16))
        return found


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.send(m.Hello(m.PROTOCOL_VERSIONS))
    await peer.receive(1)
    yield peer
    peer.finish(MOST)
    await settle()
    peer.sock.close()
    await settle()


async def settle() -> None:
    """Let the loop do all that it can do now."""
    for _ in range(50):
        await asyncio.sleep(0)


def hold(request_id: int) -> m.Hold:
    return m.Hold(request_id, LAYOUT, HASHES, 600_000)


async def test_requests_beyond_the_limit_wait_in_order_until_others_are_done(peer: Peer) -> None:
    last = 3 * MOST
    await peer.send(*map(hold, range(1, last)), m.Lookup(last, LAYOUT, HASHES))
    await peer.send(hold(last + 1))
    await settle()
    assert peer.gets.begun == list(range(1, MOST + 1))
    peer.finish(2)
    assert [reply.request_id for reply in await peer.receive(2)] == [1, 2]
    await settle()
    assert peer.gets.begun == list(range(1, MOST + 3)), "two were done, and two more have begun"
    for _ in range(3):
        peer.finish(MOST)
        await settle()
    assert peer.gets.begun == list(range(1, last + 2))


async def test_requests_under_way_and_waiting_count_as_memory_until_they_are_done(peer: Peer) -> None:
    assert peer.session.memory == 0
    await peer.send(*map(hold, range(2 * MOST)))
    await settle()
    assert peer.session.memory >= 2 * MOST * len(HASHES.packed)
    peer.finish(MOST)
    await peer.receive(MOST)
    await settle()
    peer.finish(MOST)
    await peer.receive(MOST)
    assert peer.session.memory == 0


async def test_requests_wait_where_those_under_way_take_much_memory(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_MAX_REQUEST_BYTES", session_module._MESSAGE_BYTES)
    await peer.send(hold(1), hold(2))
    await settle()
    assert peer.gets.begun == [1]
    peer.finish(1)
    await settle()


async def test_closed_connection_counts_until_its_requests_are_done(peer: Peer) -> None:
    await peer.send(hold(1), hold(2))
    await settle()
    peer.sock.close()
    await settle()
    assert (peer.told, peer.session.memory > 0) == (["leave"], True)
    peer.finish(2)
    await settle()
    assert (peer.told, peer.session.memory) == (["leave", "forget"], 0)
