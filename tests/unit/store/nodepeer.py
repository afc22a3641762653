"""kvtier-node's end of the node socket, as small as a test needs it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from kvtier_agent.link import (
    Device,
    DeviceAbsent,
    Listener,
    ListenerGone,
    NodeRefusal,
    NodeWelcome,
    PodIdentity,
    StoreHello,
)
from kvtier_client.protocol.frames import FrameDecoder, encode_frame

from tests.unit.store.process import WAIT_S


class NodePeer:
    """Listens where the store connects; keeps pods' listening sockets, as kvtier-node does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "node.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self._connection: socket.socket | None = None
        self.pods: dict[str, tuple[PodIdentity, socket.socket]] = {}

    def accept(self) -> StoreHello:
        """Wait for a store's hello."""
        self.hang_up()
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(WAIT_S)
        decoder: FrameDecoder[StoreHello] = FrameDecoder(StoreHello)
        while True:
            for hello in decoder.feed(self._connection.recv(1 << 16)):
                return hello

    def welcome(self) -> None:
        """Serve the store: all listeners that there are."""
        self._send(NodeWelcome("node-1"))
        for volume_id in self.pods:
            self._send_listener(volume_id)

    def refuse(self, message: str) -> None:
        self._send(NodeRefusal(message))

    def publish(self, name: str, *, tell: bool = True, **identity: Any) -> Path:
        """A pod's listening socket; returns its path."""
        values = {"namespace": "team", "name": name, "uid": f"uid-{name}", "service_account": "engine", "pool": "demo"}
        path = self.folder / f"{name}.sock"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(path))
        sock.listen()
        self.pods[f"volume-{name}"] = (PodIdentity(**(values | identity)), sock)
        if tell:
            self._send_listener(f"volume-{name}")
        return path

    def unpublish(self, name: str) -> None:
        self.pods.pop(f"volume-{name}")[1].close()
        self._send(ListenerGone(f"volume-{name}"))

    def hand_over(self, name: str, path: str) -> None:
        """A raw device, opened as kvtier-node does, and kept by the store alone."""
        assert self._connection is not None
        fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_DIRECT)
        try:
            socket.send_fds(self._connection, [encode_frame(Device(name))], [fd])
        finally:
            os.close(fd)

    def lack(self, name: str, message: str) -> None:
        """A raw device that cannot be handed over."""
        self._send(DeviceAbsent(name, message))

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self.hang_up()
        self._listener.close()
        for _, sock in self.pods.values():
            sock.close()

    def _send(self, message: Any) -> None:
        assert self._connection is not None
        self._connection.sendall(encode_frame(message))

    def _send_listener(self, volume_id: str) -> None:
        assert self._connection is not None
        identity, sock = self.pods[volume_id]
        socket.send_fds(self._connection, [encode_frame(Listener(volume_id, identity))], [sock.fileno()])
