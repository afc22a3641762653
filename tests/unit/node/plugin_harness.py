"""A node plugin in this process, on real sockets in a scratch kubelet folder."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from kvtier_agent import link
from kvtier_agent.node.csi import csi_pb2, csi_pb2_grpc
from kvtier_agent.node.folders import folder
from kvtier_agent.node.plugin import serving_plugin
from kvtier_agent.node.raw_devices import RawDevices
from kvtier_agent.node.store_link import StoreLink
from kvtier_agent.node.volumes import Volumes
from kvtier_client.protocol.frames import FrameDecoder, encode_frame

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="kvtier-node runs as root: it gives folders to other users")
VOLUME = "csi-0123456789abcdef"
CONTEXT = {
    "pool": "chat",
    "csi.storage.k8s.io/pod.name": "engine-0",
    "csi.storage.k8s.io/pod.namespace": "team-a",
    "csi.storage.k8s.io/pod.uid": "11111111-2222-3333-4444-555555555555",
    "csi.storage.k8s.io/serviceAccount.name": "engine",
    "csi.storage.k8s.io/ephemeral": "true",
}
IDENTITY = link.PodIdentity(
    namespace="team-a",
    name="engine-0",
    uid="11111111-2222-3333-4444-555555555555",
    service_account="engine",
    pool="chat",
)


@dataclass
class Plugin:
    """The parts of a running plugin, and a kubelet's stub for it."""

    kubelet_dir: Path
    volumes: Volumes
    store_link: StoreLink
    node_socket: Path
    stub: Any
    channel: grpc.aio.Channel

    def target(self, pod: str = "pod-1") -> Path:
        """A target as long as a kubelet's: its parent exists, it does not."""
        parent = self.kubelet_dir / "pods" / f"{pod}-{'u' * 60}" / "volumes" / "kubernetes.io~csi" / "kvtier"
        parent.mkdir(parents=True, exist_ok=True)
        return parent / "mount"

    async def publish(
        self, target: Path, volume: str = VOLUME, context: Mapping[str, str] = CONTEXT, *, readonly: bool = False
    ) -> None:
        await self.stub.NodePublishVolume(
            csi_pb2.NodePublishVolumeRequest(
                volume_id=volume, target_path=str(target), volume_context=dict(context), readonly=readonly
            ),
            timeout=10,
        )

    async def unpublish(self, target: Path, volume: str = VOLUME) -> None:
        await self.stub.NodeUnpublishVolume(
            csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(target)), timeout=10
        )


@asynccontextmanager
async def running_plugin(scratch: Path, tier_class: str | None = "gpu") -> AsyncIterator[Plugin]:
    """A plugin whose folders are in `scratch`; root may be its store. Ends like a killed one: records stay."""
    kubelet_dir = scratch / "kubelet"
    kubelet_dir.mkdir(exist_ok=True)
    node_socket = scratch / "node" / "node.sock"
    volumes = Volumes(records=scratch / "volumes", kubelet_dir=kubelet_dir, sidecar_uid=64101)
    raw_devices = RawDevices(scratch / "host")
    store_link = StoreLink(node="n1", allowed_uids={0}, published=volumes.published, raw_devices=raw_devices)
    volumes.on_published, volumes.on_gone = store_link.announce, store_link.withdraw
    store_link.serve_class(tier_class)
    volumes.restore()
    serving = asyncio.create_task(store_link.serve(node_socket, group=0))
    await asyncio.sleep(0)  # it listens before it first waits
    channel = grpc.aio.insecure_channel(f"unix:{kubelet_dir}/plugins/csi.kvtier.io/csi.sock")
    try:
        async with serving_plugin(kubelet_dir, "n1", volumes), channel:
            yield Plugin(kubelet_dir, volumes, store_link, node_socket, csi_pb2_grpc.NodeStub(channel), channel)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        for published in volumes.published():
            published.listener.close()


class Store:
    """A store's end of the node socket."""

    def __init__(
        self,
        node_socket: Path,
        tier_class: str = "gpu",
        version: int = link.LINK_VERSION,
        devices: tuple[str, ...] = (),
    ) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(5)
        self.connection.connect(str(node_socket))
        self._hello = link.StoreHello(tier_class, version, devices)
        self.hello()
        self._decoder: FrameDecoder[link.ToStore] = FrameDecoder(link.ToStore)
        self._descriptors: list[int] = []
        self._messages: Iterator[link.ToStore] = iter(())

    def hello(self) -> None:
        """Say who it is."""
        self.connection.sendall(encode_frame(self._hello))

    async def receive_device(self) -> tuple[link.ToStore, int | None]:
        """The next message, with a device's descriptor."""
        message, _ = await self.receive()
        return message, self._descriptors.pop(0) if isinstance(message, link.Device) else None

    def want(self, name: str) -> None:
        """Ask for a device anew."""
        self.connection.sendall(encode_frame(link.WantDevice(name)))

    async def receive(self) -> tuple[link.ToStore, socket.socket | None]:
        """The next message, with its listener. EOFError when the link was closed."""
        return await asyncio.to_thread(self._receive)

    def _receive(self) -> tuple[link.ToStore, socket.socket | None]:
        while True:
            for message in self._messages:
                if isinstance(message, link.Listener):
                    return message, socket.socket(fileno=self._descriptors.pop(0))
                return message, None
            data, descriptors, _, _ = socket.recv_fds(self.connection, 65536, 64)
            if not data:
                raise EOFError
            self._descriptors += descriptors
            self._messages = self._decoder.feed(data)

    def close(self) -> None:
        self.connection.close()
        for descriptor in self._descriptors:
            socket.close(descriptor)


@asynccontextmanager
async def connected_store(plugin: Plugin, tier_class: str = "gpu") -> AsyncIterator[Store]:
    """A store that has said hello."""
    store = Store(plugin.node_socket, tier_class)
    try:
        yield store
    finally:
        store.close()


def connect(target: Path) -> socket.socket:
    """Connect to a pod's socket as its sidecar does, whatever the path's length."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    with folder(target) as descriptor:
        try:
            connection.connect(f"/proc/self/fd/{descriptor}/agent.sock")
        except OSError:
            connection.close()
            raise
    return connection
