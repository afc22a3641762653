"""Publishing over a real CSI socket: folders, sockets, identity, refusals, restarts."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from kvtier_agent.link import Listener, ListenerGone, NodeWelcome
from kvtier_agent.node.csi import csi_pb2, csi_pb2_grpc, registration_pb2, registration_pb2_grpc

from tests.unit.node.plugin_harness import (
    AS_ROOT,
    CONTEXT,
    IDENTITY,
    VOLUME,
    Plugin,
    connect,
    connected_store,
    running_plugin,
)

pytestmark = AS_ROOT


@pytest.fixture
async def plugin(scratch: Path) -> AsyncIterator[Plugin]:
    async with running_plugin(scratch) as running:
        yield running


async def test_publish_makes_folder_and_listening_socket_of_the_sidecar(plugin: Plugin) -> None:
    target = plugin.target()
    assert len(str(target / "agent.sock")) > 108, "the path must exceed a socket address, or this proves nothing"
    await plugin.publish(target)
    made, name = target.stat(), (target / "agent.sock").lstat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (64101, 64101, 0o755)
    assert (name.st_uid, stat.S_IMODE(name.st_mode)) == (64101, 0o600)
    connect(target).close()


async def test_socket_refuses_users_other_than_the_sidecar(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    for folder in (target, *target.parents):
        if folder.is_relative_to(plugin.kubelet_dir.parent.parent):
            folder.chmod(0o755)
    assert _can_connect_as(64101, target)
    assert not _can_connect_as(1000, target)


async def test_publish_repeated_keeps_the_same_socket(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    inode = (target / "agent.sock").lstat().st_ino
    waiting = connect(target)
    await plugin.publish(target)
    assert (target / "agent.sock").lstat().st_ino == inode
    waiting.close()


async def test_publish_after_the_socket_was_removed_binds_it_again(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    (target / "agent.sock").unlink()
    await plugin.publish(target)
    connect(target).close()


async def test_publish_keeps_its_record_for_root_alone(plugin: Plugin) -> None:
    await plugin.publish(plugin.target())
    (record,) = (plugin.kubelet_dir.parent / "volumes").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pool": None}, "does not name a pool; write `volumeAttributes: {pool: NAME}`"),
        ({"pool": ""}, "pool '' is not the name of a pool; write `volumeAttributes: {pool: NAME}`"),
        ({"pool": "Chat Pool"}, "pool 'Chat Pool' is not the name of a pool"),
        ({"pool": "a/b/c"}, "or `{pool: NAMESPACE/NAME}`"),
        ({"csi.storage.k8s.io/pod.uid": None}, "csi.kvtier.io must have podInfoOnMount: true"),
    ],
)
async def test_publish_ill_formed_attributes_are_refused(
    plugin: Plugin, change: dict[str, str | None], says: str
) -> None:
    target = plugin.target()
    context = {key: value for key, value in {**CONTEXT, **change}.items() if value is not None}
    with pytest.raises(grpc.aio.AioRpcError, check=lambda error: says in (error.details() or "")) as refusal:
        await plugin.publish(target, context=context)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not target.exists()


async def test_publish_read_only_volume_is_refused_with_the_remedy(plugin: Plugin) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await plugin.publish(plugin.target(), readonly=True)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "set readOnly on the engine's volumeMount instead" in (refusal.value.details() or "")


@pytest.mark.parametrize("target", ["/etc", "{kubelet}/plugins/x", "{kubelet}/pods/../../etc", "{kubelet}/pods"])
async def test_target_outside_the_pods_folder_is_refused(plugin: Plugin, target: str) -> None:
    path = Path(target.format(kubelet=plugin.kubelet_dir))
    for call in (plugin.publish, plugin.unpublish):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call(path)
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "is not below" in (refusal.value.details() or "")


async def test_unpublish_removes_all_and_may_be_repeated(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    (target / "kvtier.sock").write_text("whatever the pod left")
    await plugin.unpublish(target)
    assert not target.exists()
    assert not list((plugin.kubelet_dir.parent / "volumes").iterdir())
    await plugin.unpublish(target)


async def test_restarted_plugin_binds_sockets_again_in_place(scratch: Path) -> None:
    async with running_plugin(scratch) as first:
        target = first.target()
        await first.publish(target)
        before = (target / "agent.sock").lstat().st_ctime_ns  # a freed inode's number may come again
        mounted = os.open(target, os.O_RDONLY | os.O_DIRECTORY)  # what a running pod holds
    with pytest.raises(ConnectionRefusedError):
        connect(target)
    async with running_plugin(scratch) as second, connected_store(second) as store:
        assert os.stat("agent.sock", dir_fd=mounted).st_ctime_ns > before
        assert await store.receive() == (NodeWelcome("n1"), None)
        message, listener = await store.receive()
        assert message == Listener(VOLUME, IDENTITY)
        assert listener is not None
        with listener, connect(target):
            listener.accept()[0].close()
    os.close(mounted)


async def test_restarted_plugin_unpublishes_a_volume_it_never_saw(scratch: Path) -> None:
    async with running_plugin(scratch) as first:
        target = first.target()
        await first.publish(target)
    for record in (scratch / "volumes").iterdir():
        record.unlink()
    async with running_plugin(scratch) as second:
        assert not list(second.volumes.published())
        await second.unpublish(target)
    assert not target.exists()


async def test_restarted_plugin_forgets_volumes_whose_folder_is_gone(scratch: Path) -> None:
    async with running_plugin(scratch) as first:
        target = first.target()
        await first.publish(target)
    (target / "agent.sock").unlink()
    target.rmdir()
    async with running_plugin(scratch) as second:
        assert not list(second.volumes.published())
        assert not list((scratch / "volumes").iterdir())


async def test_restarted_plugin_with_a_damaged_record_serves_the_others(scratch: Path) -> None:
    async with running_plugin(scratch) as first:
        await first.publish(first.target("pod-1"), "volume-1")
        await first.publish(first.target("pod-2"), "volume-2")
    damaged, kept = sorted((scratch / "volumes").iterdir())
    damaged.write_bytes(kept.read_bytes()[:20])
    async with running_plugin(scratch) as second:
        assert len(list(second.volumes.published())) == 1


async def test_store_hears_of_volumes_published_and_unpublished_later(plugin: Plugin) -> None:
    async with connected_store(plugin) as store:
        await store.receive()
        target = plugin.target()
        await plugin.publish(target)
        message, listener = await store.receive()
        assert message == Listener(VOLUME, IDENTITY)
        assert listener is not None
        listener.close()
        await plugin.unpublish(target)
        assert await store.receive() == (ListenerGone(VOLUME), None)


async def test_connection_made_without_a_store_waits_for_one(plugin: Plugin) -> None:
    target = plugin.target()
    await plugin.publish(target)
    with connect(target) as early:
        early.sendall(b"hello")
        async with connected_store(plugin) as store:
            await store.receive()
            _, listener = await store.receive()
            assert listener is not None
            with listener, listener.accept()[0] as accepted:
                assert accepted.recv(5) == b"hello"


async def test_identity_and_node_answer_as_the_kubelet_expects(plugin: Plugin) -> None:
    identity = csi_pb2_grpc.IdentityStub(plugin.channel)
    info = await identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest())
    assert info.name == "csi.kvtier.io"
    assert info.vendor_version
    assert (await identity.Probe(csi_pb2.ProbeRequest())).ready.value
    assert await identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest()) is not None
    assert (await plugin.stub.NodeGetInfo(csi_pb2.NodeGetInfoRequest())).node_id == "n1"
    assert await plugin.stub.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest()) is not None


async def test_registration_names_the_csi_socket(plugin: Plugin) -> None:
    async with grpc.aio.insecure_channel(
        f"unix:{plugin.kubelet_dir}/plugins_registry/csi.kvtier.io-reg.sock"
    ) as channel:
        registration = registration_pb2_grpc.RegistrationStub(channel)
        info = await registration.GetInfo(registration_pb2.InfoRequest())
        assert info == registration_pb2.PluginInfo(
            type="CSIPlugin",
            name="csi.kvtier.io",
            endpoint=f"{plugin.kubelet_dir}/plugins/csi.kvtier.io/csi.sock",
            supported_versions=["1.0.0"],
        )
        await registration.NotifyRegistrationStatus(registration_pb2.RegistrationStatus(plugin_registered=True))


def _can_connect_as(uid: int, target: Path) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            connect(target).close()
            os._exit(0)
        except OSError:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0
