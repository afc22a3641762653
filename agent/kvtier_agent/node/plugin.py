"""The CSI node plugin and its registration with the kubelet, over gRPC."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import BoolValue
from kvtier_crds import names

from kvtier_agent.link import PodIdentity
from kvtier_agent.node.csi import csi_pb2, csi_pb2_grpc, registration_pb2, registration_pb2_grpc
from kvtier_agent.node.volumes import VolumeRecord, VolumeRefused, Volumes

log = logging.getLogger(__name__)

STOP_GRACE_S: Final = 5.0
_POD_INFO: Final = "csi.storage.k8s.io/"
_NAME: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_POOL: Final = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_HOW_TO_NAME_A_POOL: Final = (
    "write `volumeAttributes: {pool: NAME}` for a CachePool of the pod's namespace, or `{pool: NAMESPACE/NAME}`"
)


def pod_identity(context: Mapping[str, str]) -> PodIdentity:
    """Who asks, by a volume's context as the kubelet sends it.

    Raises VolumeRefused with what to write when the pool is not named or the pod is not told.
    """
    pool = context.get("pool")
    if pool is None:
        raise VolumeRefused(f"the volume does not name a pool; {_HOW_TO_NAME_A_POOL}")
    if not _POOL.fullmatch(pool):
        raise VolumeRefused(f"pool {pool[:300]!r} is not the name of a pool; {_HOW_TO_NAME_A_POOL}")
    told = [context.get(_POD_INFO + key, "") for key in ("pod.namespace", "pod.name", "pod.uid", "serviceAccount.name")]
    if not all(told):
        raise VolumeRefused(
            "the kubelet did not say which pod asks; "
            f"the CSIDriver object {names.CSI_DRIVER} must have podInfoOnMount: true"
        )
    namespace, name, uid, service_account = told
    return PodIdentity(namespace=namespace, name=name, uid=uid, service_account=service_account, pool=pool)


class IdentityService(csi_pb2_grpc.IdentityServicer):
    """CSI Identity: the driver's name, no capabilities, always ready."""

    async def GetPluginInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Name and version."""
        return csi_pb2.GetPluginInfoResponse(name=names.CSI_DRIVER, vendor_version=version("kvtier"))

    async def GetPluginCapabilities(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """None: there is no controller."""
        return csi_pb2.GetPluginCapabilitiesResponse()

    async def Probe(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Ready."""
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))


class NodeService(csi_pb2_grpc.NodeServicer):
    """CSI Node: publishes and unpublishes volumes."""

    def __init__(self, node: str, volumes: Volumes) -> None:
        self._node = node
        self._volumes = volumes
        self._busy: set[str] = set()

    async def NodeGetCapabilities(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """None: nothing is staged, expanded or measured."""
        return csi_pb2.NodeGetCapabilitiesResponse()

    async def NodeGetInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """The node's name."""
        return csi_pb2.NodeGetInfoResponse(node_id=self._node)

    async def NodePublishVolume(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Make the pod's folder and socket."""
        try:
            with self._alone(request.volume_id):
                if request.readonly:
                    raise VolumeRefused(
                        "the volume is readOnly, but the sidecar makes its socket in it; set readOnly on the "
                        "engine's volumeMount instead"
                    )
                pod = pod_identity(request.volume_context)
                self._volumes.publish(VolumeRecord(request.volume_id, request.target_path, pod))
        except (VolumeRefused, _OperationPending, OSError) as error:
            await _abort(context, f"publish {request.volume_id}", error)
        log.info("published for pod %s/%s, pool %s", pod.namespace, pod.name, pod.pool)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Remove the pod's folder and socket."""
        try:
            with self._alone(request.volume_id):
                self._volumes.withdraw(request.volume_id)
                await asyncio.to_thread(self._volumes.erase, request.volume_id, request.target_path)
        except (VolumeRefused, _OperationPending, OSError) as error:
            await _abort(context, f"unpublish {request.volume_id}", error)
        log.info("unpublished %s", request.volume_id)
        return csi_pb2.NodeUnpublishVolumeResponse()

    @contextmanager
    def _alone(self, volume_id: str) -> Iterator[None]:
        if not volume_id:
            raise VolumeRefused("the request does not name a volume")
        if volume_id in self._busy:
            raise _OperationPending(volume_id)
        self._busy.add(volume_id)
        try:
            yield
        finally:
            self._busy.discard(volume_id)


class RegistrationService(registration_pb2_grpc.RegistrationServicer):
    """Tells the kubelet where the CSI socket is."""

    def __init__(self, csi_socket: Path) -> None:
        self._csi_socket = csi_socket

    async def GetInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Driver name and socket."""
        return registration_pb2.PluginInfo(
            type="CSIPlugin", name=names.CSI_DRIVER, endpoint=str(self._csi_socket), supported_versions=["1.0.0"]
        )

    async def NotifyRegistrationStatus(self, request: Any, _context: Any) -> Any:  # noqa: N802
        """The kubelet's answer; it tries again by itself."""
        if request.plugin_registered:
            log.info("the kubelet has registered %s", names.CSI_DRIVER)
        else:
            log.error("the kubelet refuses %s, and will ask again: %s", names.CSI_DRIVER, request.error)
        return registration_pb2.RegistrationStatusResponse()


def csi_socket(kubelet_dir: Path) -> Path:
    """Where the kubelet finds the plugin."""
    return kubelet_dir / "plugins" / names.CSI_DRIVER / "csi.sock"


@asynccontextmanager
async def serving_plugin(kubelet_dir: Path, node: str, volumes: Volumes) -> AsyncIterator[None]:
    """Both sockets answer within the block: CSI's first, then the one that makes the kubelet look for it.

    Raises RuntimeError when a socket cannot be bound.
    """
    csi = csi_socket(kubelet_dir)
    registration_socket = kubelet_dir / "plugins_registry" / f"{names.CSI_DRIVER}-reg.sock"
    plugin, registration = grpc.aio.server(), grpc.aio.server()
    csi_pb2_grpc.add_IdentityServicer_to_server(IdentityService(), plugin)  # type: ignore[no-untyped-call]
    csi_pb2_grpc.add_NodeServicer_to_server(NodeService(node, volumes), plugin)  # type: ignore[no-untyped-call]
    registration_pb2_grpc.add_RegistrationServicer_to_server(RegistrationService(csi), registration)  # type: ignore[no-untyped-call]
    try:
        await _start(plugin, csi)
        await _start(registration, registration_socket)
        yield
    finally:
        await registration.stop(grace=0)
        await plugin.stop(grace=STOP_GRACE_S)
        del plugin, registration  # their finalizers need the running event loop
        await asyncio.sleep(0)


async def _start(server: grpc.aio.Server, path: Path) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{path}")
    await server.start()


class _OperationPending(Exception):
    """The same volume is being worked on; the kubelet asks again."""

    def __init__(self, volume_id: str) -> None:
        super().__init__(f"another request for volume {volume_id} is not finished yet")


async def _abort(context: Any, doing: str, error: Exception) -> None:
    code = {VolumeRefused: grpc.StatusCode.INVALID_ARGUMENT, _OperationPending: grpc.StatusCode.ABORTED}.get(
        type(error), grpc.StatusCode.INTERNAL
    )
    log.error("cannot %s: %s", doing, error)
    await context.abort(code, str(error))
