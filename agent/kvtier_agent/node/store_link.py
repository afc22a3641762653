"""The node socket's server: gives this node's listeners and raw devices to its one store.

The connection is the store's lease. While it stands no other store is served; when it closes the
next one that asks is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from kvtier_client.protocol.frames import FrameDecoder, FrameError, encode_frame
from kvtier_crds.models import NvmeDevice

from kvtier_agent.link import (
    LINK_VERSION,
    Device,
    DeviceAbsent,
    Listener,
    ListenerGone,
    NodeRefusal,
    NodeWelcome,
    StoreHello,
    ToNode,
    WantDevice,
)
from kvtier_agent.node.handover import Handover, OpenDevice
from kvtier_agent.node.raw_devices import RawDevices
from kvtier_agent.node.volumes import Published

log = logging.getLogger(__name__)

HELLO_DEADLINE_S: Final = 5.0
SEND_DEADLINE_S: Final = 10.0
_News = Published | ListenerGone | OpenDevice | DeviceAbsent
_PEER: Final = struct.Struct("3i")


@dataclass(eq=False)
class _Session:
    """The store that is served."""

    connection: socket.socket
    tier_class: str
    decoder: FrameDecoder[ToNode]
    handover: Handover
    outbox: asyncio.Queue[_News] = field(default_factory=asyncio.Queue)


def decide_refusal(
    hello: StoreHello,
    peer_uid: int,
    *,
    node: str,
    tier_class: str | None,
    allowed_uids: Collection[int],
    busy: bool,
    leaving: bool,
) -> str | None:
    """Why this store is not served now, in a sentence; None when it is. Pure."""
    if peer_uid not in allowed_uids:
        return f"the node socket serves kvtier-store (user {min(allowed_uids)}) only; this is user {peer_uid}"
    if hello.version != LINK_VERSION:
        return f"kvtier-node speaks version {LINK_VERSION} of the node socket, the store {hello.version}; upgrade both"
    if tier_class is None:
        return f"node {node} has no TierClass that is known here; the operator names it in CacheNode {node}"
    if hello.tier_class != tier_class:
        return f"node {node} belongs to TierClass {tier_class!r}, not to {hello.tier_class!r}"
    if leaving:
        return f"node {node} leaves TierClass {tier_class!r}; its store is no longer needed"
    if busy:
        return f"another store of TierClass {tier_class!r} still serves node {node}; it is served when that one ends"
    return None


class StoreLink:
    """Serves the node socket. Event loop only."""

    def __init__(
        self,
        *,
        node: str,
        allowed_uids: Collection[int],
        published: Callable[[], Iterable[Published]],
        raw_devices: RawDevices,
    ) -> None:
        """`published` gives all volumes, for a store that has just come."""
        self._node = node
        self._raw_devices = raw_devices
        self._devices: tuple[NvmeDevice, ...] = ()
        self._allowed_uids = allowed_uids
        self._published = published
        self._tier_class: str | None = None
        self._admit_stores = True
        self._session: _Session | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when a store came or went."""

    @property
    def connected(self) -> bool:
        """Whether a store is served."""
        return self._session is not None

    @property
    def held_devices(self) -> frozenset[str]:
        """The raw devices that the present store has, by name."""
        return frozenset(self._session.handover.held) if self._session else frozenset()

    def offer_devices(self, devices: Iterable[NvmeDevice]) -> None:
        """These are the raw devices of the node's class: the store gets each as soon as it can be opened."""
        self._devices = tuple(devices)
        if self._session is not None:
            self._session.handover.offer(self._devices)

    def serve_class(self, tier_class: str | None, *, admit: bool = True) -> None:
        """From now on the node belongs to this TierClass; None: to none. Ends another class's store.

        With `admit` False the present store may finish, and none comes after it.
        """
        self._tier_class = tier_class
        self._admit_stores = admit
        if self._session is not None and self._session.tier_class != tier_class:
            log.info(
                "the store of TierClass %s is cut off: the node is now of %s", self._session.tier_class, tier_class
            )
            _hang_up(self._session)

    def announce(self, published: Published) -> None:
        """A volume's socket listens."""
        if self._session is not None:
            self._session.outbox.put_nowait(published)

    def withdraw(self, volume_id: str) -> None:
        """A volume ended."""
        if self._session is not None:
            self._session.outbox.put_nowait(ListenerGone(volume_id))

    async def serve(self, path: Path, *, group: int) -> None:
        """Listen at `path`, for root and `group`, until cancelled."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            listener.bind(str(path))
            os.chown(path, 0, group)
            path.chmod(0o660)
            listener.listen(16)
            async with asyncio.TaskGroup() as connections:
                while True:
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                    connections.create_task(self._converse(connection))

    async def _converse(self, connection: socket.socket) -> None:
        decoder: FrameDecoder[ToNode] = FrameDecoder(ToNode)
        with connection:
            try:
                async with asyncio.timeout(HELLO_DEADLINE_S):
                    hello = await _receive_hello(connection, decoder)
                admitted = self._admit(hello, connection, decoder)
                if isinstance(admitted, NodeRefusal):
                    log.warning("store of TierClass %s refused: %s", hello.tier_class, admitted.message)
                    await _send(connection, admitted)
                else:
                    await self._serve_store(admitted)
            except (OSError, FrameError, TimeoutError) as error:
                log.warning("a connection to the node socket ended: %s", error or type(error).__name__)

    def _admit(
        self, hello: StoreHello, connection: socket.socket, decoder: FrameDecoder[ToNode]
    ) -> _Session | NodeRefusal:
        """Begin a session with this store, or say why not. Nothing is awaited, so one wins."""
        if self._session is not None and _is_closed(self._session.connection):
            self._end(self._session)
        refusal = decide_refusal(
            hello,
            _peer_uid(connection),
            node=self._node,
            tier_class=self._tier_class,
            allowed_uids=self._allowed_uids,
            busy=self._session is not None,
            leaving=not self._admit_stores,
        )
        if refusal is not None:
            return NodeRefusal(refusal)
        handover = Handover(self._node, self._raw_devices, hello.devices)
        handover.offer(self._devices)
        session = self._session = _Session(connection, hello.tier_class, decoder, handover)
        for published in self._published():
            session.outbox.put_nowait(published)
        self.on_change()
        return session

    async def _serve_store(self, session: _Session) -> None:
        log.info("store of TierClass %s is served", session.tier_class)
        parts = (
            _feed(session, NodeWelcome(self._node)),
            _listen(session),
            session.handover.run(session.outbox.put_nowait),
        )
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    log.warning("the store's connection failed: %s", error or type(error).__name__)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _close_undelivered(session)
            self._end(session)
            log.info("store of TierClass %s has gone", session.tier_class)

    def _end(self, session: _Session) -> None:
        _hang_up(session)
        if self._session is session:
            self._session = None
            self.on_change()


async def _feed(session: _Session, welcome: NodeWelcome) -> None:
    await _send(session.connection, welcome)
    while True:
        event = await session.outbox.get()
        if isinstance(event, ListenerGone | DeviceAbsent):
            await _send(session.connection, event)
        elif isinstance(event, OpenDevice):
            try:
                await _send(session.connection, Device(event.name), event.fd)
            finally:
                os.close(event.fd)  # the store has its own now, and with it the claim
        elif event.listener.fileno() >= 0:  # closed: the volume ended while this waited, its ListenerGone follows
            record = event.record
            with event.listener.dup() as listener:  # the volume may end, and its number be another's, as this waits
                await _send(session.connection, Listener(record.volume_id, record.pod), listener.fileno())


async def _send(connection: socket.socket, message: msgspec.Struct, *descriptors: int) -> None:
    """Send one frame with its descriptors. Raises OSError, or TimeoutError when the store does not read."""
    frame = encode_frame(message)
    async with asyncio.timeout(SEND_DEADLINE_S):
        while True:
            try:
                sent = socket.send_fds(connection, [frame], list(descriptors))
                break
            except BlockingIOError:
                await _writable(connection)
        await asyncio.get_running_loop().sock_sendall(connection, frame[sent:])


async def _writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(connection)


async def _receive_hello(connection: socket.socket, decoder: FrameDecoder[ToNode]) -> StoreHello:
    while data := await asyncio.get_running_loop().sock_recv(connection, 4096):
        for message in decoder.feed(data):
            if isinstance(message, StoreHello):
                return message
            raise FrameError(f"a {type(message).__name__} came before the hello")
    raise ConnectionError("it closed before its hello")


async def _listen(session: _Session) -> None:
    """Take what the store asks for, until it closes. Raises OSError, FrameError."""
    data = b""  # what came with the hello is in the decoder already
    while True:
        for message in session.decoder.feed(data):
            if not isinstance(message, WantDevice):
                raise FrameError(f"a {type(message).__name__} came after the hello")
            session.handover.want(message.name)
        data = await asyncio.get_running_loop().sock_recv(session.connection, 4096)
        if not data:
            return


def _close_undelivered(session: _Session) -> None:
    while not session.outbox.empty():
        event = session.outbox.get_nowait()
        if isinstance(event, OpenDevice):
            os.close(event.fd)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _hang_up(session: _Session) -> None:
    with suppress(OSError):
        session.connection.shutdown(socket.SHUT_RDWR)


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(credentials)[1]
    return uid
