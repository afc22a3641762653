"""The node socket: who is served, who is refused and why, what happens when a store ends."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kvtier_agent.link import Listener, NodeRefusal, NodeWelcome, StoreHello
from kvtier_agent.node.store_link import decide_refusal

from tests.unit.node.plugin_harness import AS_ROOT, IDENTITY, Plugin, Store, connected_store, running_plugin

pytestmark = AS_ROOT


@pytest.fixture
async def plugin(scratch: Path) -> AsyncIterator[Plugin]:
    async with running_plugin(scratch) as running:
        yield running


@pytest.mark.parametrize(
    ("hello", "uid", "tier_class", "busy", "refusal"),
    [
        pytest.param(StoreHello("gpu"), 64100, "gpu", False, None, id="the-store"),
        pytest.param(
            StoreHello("gpu"),
            1000,
            "gpu",
            False,
            "the node socket serves kvtier-store (user 64100) only; this is user 1000",
            id="another-user",
        ),
        pytest.param(
            StoreHello("gpu"),
            64100,
            None,
            False,
            "node n1 has no TierClass that is known here; the operator names it in CacheNode n1",
            id="no-class",
        ),
        pytest.param(
            StoreHello("cpu"),
            64100,
            "gpu",
            False,
            "node n1 belongs to TierClass 'gpu', not to 'cpu'",
            id="another-class",
        ),
        pytest.param(
            StoreHello("gpu"),
            64100,
            "gpu",
            True,
            "another store of TierClass 'gpu' still serves node n1; it is served when that one ends",
            id="busy",
        ),
        pytest.param(
            StoreHello("gpu", version=9),
            64100,
            "gpu",
            False,
            "kvtier-node speaks version 1 of the node socket, the store 9; upgrade both",
            id="version",
        ),
    ],
)
def test_decide_refusal_names_the_cause(
    hello: StoreHello, uid: int, tier_class: str | None, busy: bool, refusal: str | None
) -> None:
    decided = decide_refusal(
        hello, uid, node="n1", tier_class=tier_class, allowed_uids={64100}, busy=busy, leaving=False
    )
    assert decided == refusal


async def test_second_store_is_refused_until_the_first_ends(plugin: Plugin) -> None:
    async with connected_store(plugin) as first:
        assert await first.receive() == (NodeWelcome("n1"), None)
        async with connected_store(plugin) as second:
            refusal, _ = await second.receive()
            assert isinstance(refusal, NodeRefusal)
            assert "still serves node n1" in refusal.message
            with pytest.raises(EOFError):
                await second.receive()
        first.connection.shutdown(socket.SHUT_RDWR)
        async with connected_store(plugin) as third:
            assert await third.receive() == (NodeWelcome("n1"), None)
            assert plugin.store_link.connected


async def test_store_of_another_class_is_refused(plugin: Plugin) -> None:
    async with connected_store(plugin, "cpu") as store:
        assert await store.receive() == (NodeRefusal("node n1 belongs to TierClass 'gpu', not to 'cpu'"), None)


async def test_store_is_cut_off_when_the_node_changes_class(plugin: Plugin) -> None:
    async with connected_store(plugin) as store:
        await store.receive()
        plugin.store_link.serve_class("cpu")
        with pytest.raises(EOFError):
            await store.receive()
    async with connected_store(plugin, "cpu") as successor:
        assert await successor.receive() == (NodeWelcome("n1"), None)


async def test_new_store_gets_every_listener_at_once(plugin: Plugin) -> None:
    for number in range(40):
        await plugin.publish(plugin.target(f"pod-{number}"), f"volume-{number}")
    async with connected_store(plugin) as store:
        await store.receive()
        for number in range(40):
            message, listener = await store.receive()
            assert message == Listener(f"volume-{number}", IDENTITY)
            assert listener is not None
            path = listener.getsockname()
            listener.close()
            assert path.endswith("/agent.sock")


async def test_store_that_does_not_speak_holds_nobody_up(plugin: Plugin) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(plugin.node_socket))
        async with connected_store(plugin) as store:
            assert await store.receive() == (NodeWelcome("n1"), None)


async def test_malformed_hello_ends_only_its_own_connection(plugin: Plugin) -> None:
    with socket.socket(socket.AF_UNIX) as broken:
        broken.settimeout(5)
        broken.connect(str(plugin.node_socket))
        broken.sendall(b"\xff" * 64)
        assert await asyncio.to_thread(broken.recv, 1) == b""
    async with connected_store(plugin) as store:
        assert await store.receive() == (NodeWelcome("n1"), None)


async def test_descriptors_stay_paired_when_the_store_reads_slowly(plugin: Plugin) -> None:
    store = Store(plugin.node_socket)
    try:
        await store.receive()
        for number in range(60):
            await plugin.publish(plugin.target(f"pod-{number}"), f"volume-{number}")
        for number in range(60):
            message, listener = await store.receive()
            assert isinstance(message, Listener)
            assert message.volume_id == f"volume-{number}"
            assert listener is not None
            inode = (plugin.target(f"pod-{number}") / "agent.sock").lstat().st_ino
            with listener:
                published = [item for item in plugin.volumes.published() if item.record.volume_id == message.volume_id]
                assert published[0].inode == inode
                assert os.fstat(listener.fileno()).st_ino == os.fstat(published[0].listener.fileno()).st_ino
    finally:
        store.close()


async def test_volume_that_ends_while_its_listener_waits_to_be_sent_lends_its_number_to_no_other(
    plugin: Plugin,
) -> None:
    await plugin.publish(plugin.target())
    (published,) = plugin.volumes.published()
    number, inode = published.listener.fileno(), os.fstat(published.listener.fileno()).st_ino
    async with connected_store(plugin) as store:
        await store.receive()
        for _ in range(2000):  # more than a connection takes that is not read
            plugin.store_link.announce(published)
        await asyncio.sleep(0.5)
        plugin.volumes.withdraw(published.record.volume_id)
        others = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        assert number in [other.fileno() for other in others]
        received = set()
        message, listener = await store.receive()
        while isinstance(message, Listener):
            assert listener is not None
            received.add(os.fstat(listener.fileno()).st_ino)
            listener.close()
            message, listener = await store.receive()
        assert received == {inode}
        for other in others:
            other.close()
