"""The link to kvtier-node: asks for this node, and takes pods' listening sockets and raw devices from it."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from kvtier_agent.link import (
    Device,
    DeviceAbsent,
    Listener,
    ListenerGone,
    NodeRefusal,
    NodeWelcome,
    StoreHello,
    ToStore,
    WantDevice,
)

from .channel import Channel
from .handed import Handed
from .log import log
from .server import Identity, Server

_SETTLE_S: Final = 10.0
"""By then kvtier-node has named every volume that it still has."""
_BACKOFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


class NodeLink:
    """Keeps one connection to the node socket. Event loop thread only.

    When it is lost, listeners and sessions serve on; listeners that come again replace the earlier ones.
    """

    def __init__(self, path: str, tier_class: str, server: Server, handed: Handed) -> None:
        self._path, self._tier_class, self._server, self._handed = path, tier_class, server, handed
        handed.want = self._want
        self._channel: Channel[ToStore] | None = None
        self._ended = asyncio.Event()
        self._attempts = 0
        self._volumes: set[str] = set()
        """Listeners that came over any link and are not gone."""
        self._named: set[str] = set()
        """Of these, the ones that came over this link."""
        self.node = ""
        self.message = "not connected to kvtier-node yet"
        """Why this store does not serve the node, or ""."""

    async def run(self) -> None:
        """Connect, and connect again with back-off, until cancelled."""
        while True:
            self._ended.clear()
            try:
                await self._connect()
                await self._ended.wait()
            except OSError as error:
                reason = error.strerror or "no answer"
                self.message = f"kvtier-node's socket {self._path}: {reason}"
                log("node_link.failed", path=self._path, error=reason)
            finally:
                if self._channel is not None:
                    self._channel.close("closing")
            await asyncio.sleep(_BACKOFF_S[min(self._attempts, len(_BACKOFF_S) - 1)])
            self._attempts += 1

    async def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, self._path), 5.0)
        except OSError:  # TimeoutError among them
            sock.close()
            raise
        self._channel = Channel(sock, ToStore, self._received, self._closed, fd_limit=1024)
        self._named.clear()
        self._channel.send(StoreHello(self._tier_class, devices=self._handed.names()))

    def _received(self, message: ToStore) -> None:
        assert self._channel is not None
        if isinstance(message, NodeWelcome):
            self.node, self.message, self._attempts = message.node, "", 0
            log("node_link.welcome", node=message.node)
            asyncio.get_running_loop().call_later(_SETTLE_S, self._forget_unnamed, self._channel)
        elif isinstance(message, NodeRefusal):
            self.message = message.message
            self._channel.close(f"refused: {message.message}")
        elif isinstance(message, ListenerGone):
            self._remove(message.volume_id)
        elif isinstance(message, DeviceAbsent):
            log("device.absent", device=message.name, error=message.message)
            self._handed.lacks(message.name, message.message)
        elif isinstance(message, Device):
            self._take_device(message)
        else:
            self._listen(message)

    def _take_device(self, message: Device) -> None:
        assert self._channel is not None
        fd = self._channel.take_fd()
        if fd is None:
            self._channel.close("a device came without its descriptor")
            return
        log("device.handed", device=message.name)
        self._handed.arrived(message.name, fd)

    def _want(self, name: str) -> None:
        """Ask for a device anew; without a link, the next hello does."""
        if self._channel is not None and not self.message:
            self._channel.send(WantDevice(name))

    def _listen(self, message: Listener) -> None:
        assert self._channel is not None
        fd = self._channel.take_fd()
        if fd is None:
            self._channel.close("a listener came without its descriptor")
            return
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            os.close(fd)
            log("listener.unusable", volume=message.volume_id, error=error)
            return
        self._volumes.add(message.volume_id)
        self._named.add(message.volume_id)
        self._server.listen(message.volume_id, sock, Identity(message.pod))

    def _forget_unnamed(self, channel: Channel[ToStore]) -> None:
        """Volumes that ended while there was no link are not named again."""
        if self._channel is channel:
            for volume_id in self._volumes - self._named:
                self._remove(volume_id)

    def _remove(self, volume_id: str) -> None:
        self._volumes.discard(volume_id)
        self._named.discard(volume_id)
        self._server.remove(volume_id)

    def _closed(self, reason: str) -> None:
        self._channel = None
        self._ended.set()
        log("node_link.closed", reason=reason)
