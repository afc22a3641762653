"""Pools from the attendant, listeners from kvtier-node: real processes, real sockets, the far ends by hand."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.control import ServiceAccount
from kvtier_agent.serve.metrics import ADOPTION, COUNTERS, DEVICE_COUNTERS, POOL_GAUGES
from kvtier_client.protocol.messages import PROTOCOL_VERSIONS, Hello, HelloReply, Reach, RefusalCode, Refused, Report

from tests.unit.node.loop_devices import WITH_LOOP_DEVICES, Disk, disk_below
from tests.unit.store.conftest import MakeStore
from tests.unit.store.nodepeer import NodePeer
from tests.unit.store.process import POOL, WAIT_S, Controller, StoreProcess, grant, wait_for
from tests.unit.store.rawclient import LAYOUT, RawClient, chain, data_of, hashes_of


class Cluster:
    """A store with the two that it talks to in a cluster."""

    def __init__(self, store: StoreProcess) -> None:
        self.store = store
        self.node = NodePeer(store.folder)
        self.control = Controller(store)

    def start(self) -> None:
        self.store.spawn()
        self.control.accept()
        assert self.node.accept().tier_class == "gpu"
        self.node.welcome()

    def start_with_two(self) -> tuple[Path, Path]:
        """Start with two pods that have the pool; the second one's account has it no more in a plain `grant`."""
        self.start()
        accounts = (ServiceAccount("team", "engine"), ServiceAccount("team", "second"))
        kept, revoked = self.pod("kept"), self.pod("revoked", service_account="second")
        self.control.set_pools(1, grant(service_accounts=accounts))
        return kept, revoked

    def pod(self, name: str = "pod", **identity: Any) -> Path:
        return self.node.publish(name, **identity)

    def connect(self, path: Path) -> RawClient:
        """As a client does: again while the store says that it is not ready."""

        def attempt() -> RawClient | None:
            client = RawClient(path)
            if isinstance(client.greeting, HelloReply):
                return client
            code = client.greeting.code
            client.close()
            assert code == RefusalCode.NOT_READY
            return None

        return wait_for("the store is ready", attempt)

    def close(self) -> None:
        self.store.close()
        self.node.close()
        self.control.close()


@pytest.fixture
def cluster(make_store: MakeStore) -> Iterator[Cluster]:
    store = make_store(nodeSocket="set below", tierClass="gpu")
    made = Cluster(store)
    store.config["nodeSocket"] = str(made.node.path)
    yield made
    made.close()


def test_pod_is_not_served_before_the_pools_are_known(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    snapshot = cluster.control.snapshot(lambda it: it.message != "recovering")
    assert (snapshot.ready, snapshot.generation) == (False, 0)
    assert snapshot.message in ("not connected to kvtier-node yet", "the node's pools are not known yet")
    with RawClient(path) as client:
        assert client.greeting.code == RefusalCode.NOT_READY


def test_granted_pod_is_served_and_seen_in_the_snapshot(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(4, grant())
    with cluster.connect(path) as client:
        assert (client.greeting.pool, client.greeting.pool_uid) == ("team/demo", POOL)
        blocks = chain("a", 10)
        client.put(None, blocks, reach=Reach.FLUSHED)
        client.lookup([*hashes_of(blocks), b"x" * 32])
        client.read_all(hashes_of(blocks))
        snapshot = cluster.control.snapshot(lambda it: bool(it.pools) and it.pools[0].counters["pages_read_dram"] == 10)
    (pool,) = snapshot.pools
    assert (snapshot.ready, snapshot.message, snapshot.generation, snapshot.node) == (True, "", 4, "node-1")
    assert (pool.uid, pool.namespace, pool.name, pool.blocks, pool.connections) == (POOL, "team", "demo", 10, 1)
    assert (pool.recent_asked, pool.recent_hit) == (11, 10)
    assert {tier: use.pages for tier, use in pool.tiers.items()} == {"dram": 10, "nvme": 10}
    assert snapshot.tiers["dram"].capacity_bytes == 8 << 20
    assert snapshot.tiers["dram"].used_bytes == 10 * 65_536
    assert [(device.name, device.state) for device in snapshot.devices] == [("d0", "ready")]
    expected = {"lookups": 1, "blocks_asked": 11, "blocks_hit": 10, "puts": 1, "pages_stored": 10}
    expected |= {"bytes_stored": 655_360, "pages_written_nvme": 10, "pages_read_nvme": 0, "puts_refused": 0}
    assert expected.items() <= pool.counters.items()


def test_pod_of_another_service_account_is_refused_with_the_remedy(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod(service_account="other")
    cluster.control.set_pools(1, grant())
    cluster.control.snapshot(lambda it: it.ready)
    with RawClient(path) as client:
        assert client.greeting.code == RefusalCode.NOT_GRANTED
        assert "add it to the CachePool's spec" in client.greeting.message


def test_revoked_grant_ends_the_connection_and_no_other(cluster: Cluster) -> None:
    kept, revoked = cluster.start_with_two()
    with cluster.connect(kept) as first, cluster.connect(revoked) as second:
        cluster.control.set_pools(2, grant())
        reply = second.receive()
        assert isinstance(reply, Refused)
        assert reply.code == RefusalCode.NOT_GRANTED
        assert second.receive() is None
        assert first.lookup([b"h" * 32]).whole_blocks == 0
    with RawClient(revoked) as again:
        assert again.greeting.code == RefusalCode.NOT_GRANTED


def test_revoked_pod_sees_nothing_of_what_is_stored_later(cluster: Cluster) -> None:
    kept, revoked = cluster.start_with_two()
    blocks, later = chain("before", 3), chain("later", 3)
    with cluster.connect(kept) as first, cluster.connect(revoked) as second:
        first.put(None, blocks, reach=Reach.FLUSHED)
        assert second.read_all(hashes_of(blocks)) == data_of(blocks)  # it maps the chunks now
        mapped = set(cluster.store.chunks())
        cluster.control.set_pools(2, grant())
        assert second.receive().code == RefusalCode.NOT_GRANTED
        wait_for("the mapped chunks are given back", lambda: mapped.isdisjoint(cluster.store.chunks()) or None)
        first.put(None, later)
        assert first.read_all(hashes_of(later)) == data_of(later)
        assert first.read_all(hashes_of(blocks)) == data_of(blocks), "nvme still has what DRAM gave up"
        assert mapped.isdisjoint(cluster.store.chunks())


@pytest.mark.parametrize("told", [pytest.param(True, id="told-before"), pytest.param(False, id="told-at-its-start")])
def test_revoked_pod_sees_nothing_of_what_a_killed_stores_successor_stores(cluster: Cluster, told: bool) -> None:
    kept, revoked = cluster.start_with_two()
    blocks, later = chain("before", 3), chain("later", 3)
    with cluster.connect(kept) as first, cluster.connect(revoked) as second:
        first.put(None, blocks, reach=Reach.FLUSHED)
        assert second.read_all(hashes_of(blocks)) == data_of(blocks)  # it maps the chunks now
        mapped = set(second.chunks)
        if told:
            first.get(hashes_of(blocks))  # the hold keeps the chunk from being given back
            cluster.control.set_pools(2, grant())
            cluster.control.snapshot(lambda it: it.generation == 2)
        cluster.store.kill()
    assert cluster.store.chunks()
    cluster.start()
    cluster.control.set_pools(2, grant())
    with cluster.connect(kept) as first:
        assert first.put(None, later).reached is Reach.DRAM
        assert mapped.isdisjoint(place.chunk for place in first.get(hashes_of(later)).places)
        assert first.read_all(hashes_of(blocks)) == data_of(blocks), "nvme still has what DRAM gives up"
        note = cluster.store.arena / POOL / "accounts/team/second"
        wait_for("the account's last chunk is gone", lambda: not note.exists())
        assert mapped.isdisjoint(int(chunk.stem, 16) for chunk in cluster.store.chunks())


@pytest.mark.parametrize("closes", [pytest.param(False, id="open"), pytest.param(True, id="closed-before")])
def test_put_under_way_when_its_grant_is_revoked_stores_nothing(cluster: Cluster, closes: bool) -> None:
    kept, revoked = cluster.start_with_two()
    blocks, others = chain("revoked", 3), chain("kept", 3)
    with cluster.connect(kept) as first, cluster.connect(revoked) as second:
        assert first.put(None, others).reached is Reach.DRAM
        second.stage()
        for pid in cluster.store.movers():
            os.kill(pid, signal.SIGSTOP)
        second.send_put(None, blocks)
        first.send_put(others[-1][0], chain("more", 1))  # answered last, by the same movers
        assert second.lookup(hashes_of(others)).whole_blocks == 3, "the put before it was taken up"
        if closes:
            cluster.control.snapshot(lambda it: [pool.connections for pool in it.pools] == [2])
            second.sock.close()
            cluster.control.snapshot(lambda it: [pool.connections for pool in it.pools] == [1])
        cluster.control.set_pools(2, grant())
        cluster.control.snapshot(lambda it: it.generation == 2)
        assert closes or isinstance(second.receive(), Refused)
        for pid in cluster.store.movers():
            os.kill(pid, signal.SIGCONT)
        assert first.receive().stored_pages == 1
        assert first.put(None, chain("still more", 1)).reached is Reach.DRAM
        assert first.lookup(hashes_of(blocks)).whole_blocks == 0
        assert first.put(None, blocks).stored_pages == 3


def test_pool_that_is_gone_is_purged_for_good(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant(), grant("uid-2", "other"))
    blocks = chain("a", 20)
    with cluster.connect(path) as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        held = client.get(hashes_of(blocks))
        cluster.control.set_pools(2, grant("uid-2", "other"))
        cluster.control.snapshot(lambda it: it.generation == 2)
        assert [client.read(place) for place in held.places] == [None] * 20
    assert cluster.store.nvme_bytes() == 0
    assert not (cluster.store.arena / POOL).exists()
    cluster.store.kill()
    cluster.start()
    cluster.control.set_pools(3, grant(), grant("uid-2", "other"))
    cluster.control.snapshot(lambda it: it.generation == 3)
    with cluster.connect(path) as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0


def test_pool_of_an_old_name_and_a_new_uid_is_another_pool(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    blocks = chain("a", 5)
    with cluster.connect(path) as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        cluster.control.set_pools(2, grant("uid-2"))
        assert isinstance(client.receive(), Refused)
    with cluster.connect(path) as client:
        assert client.greeting.pool_uid == "uid-2"
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0


def test_pools_absent_after_a_restart_are_purged_too(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        client.put(None, chain("a", 5), reach=Reach.FLUSHED)
    cluster.store.kill()
    cluster.start()
    cluster.control.set_pools(2)
    snapshot = cluster.control.snapshot(lambda it: it.generation == 2)
    assert snapshot.pools == ()
    assert cluster.store.nvme_bytes() == 0
    assert not (cluster.store.arena / POOL).exists()


def test_lowered_quotas_give_back_what_is_over(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        for number in range(6):
            client.put(None, chain(f"c{number}", 32), reach=Reach.FLUSHED)
        cluster.control.set_pools(2, grant(dram_quota=2 << 20, nvme_quota=8 << 20))
        wait_for("dram shrinks", lambda: cluster.store.chunk_bytes() <= 2 << 20)
        wait_for("nvme shrinks", lambda: cluster.store.nvme_bytes() <= 8 << 20)
        last = chain("c5", 32)
        assert client.lookup(hashes_of(last)).whole_blocks >= 10
        reply = client.get(hashes_of(last[:10]))
        assert [client.read(place) for place in reply.places] == data_of(last)[:10]


def test_drained_store_ends_connections_and_reports_it(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        client.put(None, chain("a", 20))
        cluster.control.set_pools(2, grant(), drain=True)
        assert client.receive().code == RefusalCode.UNAVAILABLE
        assert client.receive() is None
    snapshot = cluster.control.snapshot(lambda it: it.drained)
    assert snapshot.generation == 2
    with RawClient(path) as client:
        assert client.greeting.code == RefusalCode.UNAVAILABLE
    cluster.control.set_pools(3, grant())
    cluster.control.snapshot(lambda it: it.generation == 3)
    with cluster.connect(path):
        assert not cluster.control.snapshot(lambda it: it.generation == 3).drained


def test_unpublished_volume_ends_its_connections(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        cluster.node.unpublish("pod")
        assert isinstance(client.receive(), Refused)
        assert client.receive() is None


def test_lost_link_leaves_pods_served_and_is_made_again(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        cluster.node.hang_up()
        assert client.lookup([b"h" * 32]).whole_blocks == 0
        with cluster.connect(path):
            pass
        cluster.node.accept()
        cluster.node.welcome()
        second = cluster.pod("second")
        with cluster.connect(second) as other:
            assert other.lookup([b"h" * 32]).whole_blocks == 0
        assert client.lookup([b"h" * 32]).whole_blocks == 0


def test_refused_store_says_why_and_asks_again(cluster: Cluster) -> None:
    cluster.store.spawn()
    cluster.control.accept()
    cluster.control.set_pools(1, grant())
    cluster.node.accept()
    cluster.node.refuse("node node-1 belongs to TierClass 'big'")
    snapshot = cluster.control.snapshot(lambda it: "belongs to" in it.message)
    assert not snapshot.ready
    cluster.node.accept()
    cluster.node.welcome()
    assert cluster.control.snapshot(lambda it: it.ready).message == ""


def test_connection_made_while_the_store_was_away_is_served(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        client.put(None, chain("a", 5))
    cluster.store.kill()
    with RawClient(path, hello=False) as waiting:
        cluster.start()
        cluster.control.set_pools(1, grant())
        cluster.control.snapshot(lambda it: it.ready)
        assert isinstance(waiting.ask(Hello(PROTOCOL_VERSIONS)), HelloReply)
    with cluster.connect(path) as client:
        assert client.lookup(hashes_of(chain("a", 5))).dram_blocks == 5


def test_dead_attendant_is_replaced_and_the_store_goes_on(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        store = cluster.store.process
        assert store is not None
        children = Path(f"/proc/{store.pid}/task/{store.pid}/children").read_text().split()
        movers = [*cluster.store.movers(), *cluster.store.device_movers()]
        (attendant,) = [int(pid) for pid in children if int(pid) not in movers]
        os.kill(attendant, signal.SIGKILL)
        cluster.control.accept()
        assert cluster.control.snapshot(lambda it: it.ready).generation == 1
        assert client.lookup([b"h" * 32]).whole_blocks == 0


def test_clients_descriptors_are_opened_through_the_client_path(cluster: Cluster) -> None:
    """A folder linked beside the arena stands for its read-only mount."""
    mount = cluster.store.folder / "read-only"
    mount.symlink_to(cluster.store.arena)
    cluster.store.config["arena"]["clientPath"] = str(mount)
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        client.put(None, chain("a", 5))
        client.get(hashes_of(chain("a", 5)))
        (fd,) = client.chunk_fds.values()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"x")
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(fd, 0)
        mount.unlink()
        client.put(None, chain("b", 100))
        reply = client.get(hashes_of(chain("b", 100)))
        assert reply.code == RefusalCode.UNAVAILABLE, "descriptors come from the client path alone"


def test_holds_of_one_pod_are_released_by_its_other_connections_only(cluster: Cluster) -> None:
    cluster.start()
    mine, theirs = cluster.pod("mine"), cluster.pod("theirs")
    cluster.control.set_pools(1, grant())
    blocks = chain("held", 100)
    with cluster.connect(mine) as scheduler, cluster.connect(mine) as worker, cluster.connect(theirs) as stranger:
        scheduler.put(None, blocks, reach=Reach.SEALED)
        held = scheduler.get(hashes_of(blocks))
        stranger.release(held)
        assert stranger.put(None, chain("x", 100), deadline_ms=3000, reach=Reach.SEALED).stored_pages < 50
        assert [scheduler.read(place) for place in held.places] == data_of(blocks)
        worker.release(held)
        assert worker.lookup(hashes_of(blocks)).whole_blocks == 100
        assert stranger.put(None, chain("y", 100), reach=Reach.SEALED).stored_pages == 100


def test_holds_go_with_the_pods_last_connection(cluster: Cluster) -> None:
    cluster.start()
    mine, theirs = cluster.pod("mine"), cluster.pod("theirs")
    cluster.control.set_pools(1, grant())
    blocks = chain("held", 100)
    with cluster.connect(theirs) as stranger:
        with cluster.connect(mine) as reader:
            reader.put(None, blocks, reach=Reach.SEALED)
            reader.get(hashes_of(blocks))
        wait_for("room comes", lambda: getattr(stranger.put(None, chain("y", 100)), "stored_pages", 0) == 100)


def test_device_that_is_missing_is_gone_in_the_snapshot_and_taken_back_once_it_is_there(cluster: Cluster) -> None:
    pulled_out = cluster.store.folder / "pulled-out"
    cluster.store.nvme.rename(pulled_out)
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        (device,) = cluster.control.snapshot(lambda it: it.ready).devices
        assert (device.name, device.state) == ("d0", "gone")
        assert str(cluster.store.nvme) in device.message
        assert "tried again with back-off" in device.message
        blocks = chain("a", 5)
        assert client.put(None, blocks).stored_pages == 5
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
        pulled_out.rename(cluster.store.nvme)
        (device,) = cluster.control.snapshot(lambda it: it.devices[0].state == "ready").devices
        assert (device.message, device.capacity_bytes > 0) == ("", True)
        assert client.put(None, chain("b", 5), reach=Reach.FLUSHED).reached == Reach.FLUSHED


def test_figures_of_reads_pins_and_devices_are_in_the_snapshot(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    blocks = chain("a", 20)
    with cluster.connect(path) as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        (pool,) = cluster.control.snapshot(lambda it: it.ready).pools
        assert pool.gauges == {"pinned_bytes": 0}
        client.push_out(blocks)
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
        assert client.pin(hashes_of(blocks)[:3], 60).blocks == 3
        speed = {"block_tokens": 16, "prefill_tokens_per_s": 1.0, "at_depth": 0, "bytes_per_token": 4096.0}
        client.send(Report(LAYOUT, **speed))
        snapshot = cluster.control.snapshot(lambda it: "breakeven_blocks" in it.pools[0].gauges)
    (pool,), (device,) = snapshot.pools, snapshot.devices
    assert pool.gauges["pinned_bytes"] == 3 * 65_536
    assert pool.gauges["runs_per_chain"] == 1
    assert pool.gauges["breakeven_blocks"] == 1
    assert pool.gauges["bytes_per_request"] * pool.counters["requests_read_nvme"] == device.counters["read_bytes"]
    assert pool.gauges["bytes_per_request"] > 65_536
    assert device.counters["reads"] == pool.counters["requests_read_nvme"] > 0
    assert device.counters["read_bytes"] >= pool.counters["bytes_read_nvme"] == 20 * 65_536
    assert device.counters["writes"] > 0
    assert device.counters["written_bytes"] > pool.counters["bytes_written_nvme"] >= 20 * 65_536
    assert (device.counters["errors"], device.counters["late"]) == (0, 0)


def test_counters_of_the_store_are_those_that_the_metrics_explain(cluster: Cluster) -> None:
    cluster.start()
    cluster.control.set_pools(1, grant())
    snapshot = cluster.control.snapshot(lambda it: bool(it.pools) and "seconds" in it.adoption)
    assert snapshot.pools[0].counters.keys() == COUNTERS.keys()
    assert snapshot.pools[0].gauges.keys() <= POOL_GAUGES.keys()
    assert snapshot.devices[0].counters.keys() == DEVICE_COUNTERS.keys()
    assert snapshot.adoption.keys() == ADOPTION.keys()


def test_what_a_killed_stores_successor_took_over_is_in_the_snapshot(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    with cluster.connect(path) as client:
        client.put(None, chain("a", 10), reach=Reach.FLUSHED)
        nothing = cluster.control.snapshot(lambda it: "seconds" in it.adoption).adoption
    assert not any(amount for figure, amount in nothing.items() if figure != "seconds")
    cluster.store.kill()
    cluster.start()
    cluster.control.set_pools(1, grant())
    found = dict(cluster.control.snapshot(lambda it: "seconds" in it.adoption).adoption)
    assert 0 < found.pop("seconds") < WAIT_S
    assert found.pop("slots_discarded") > 0
    assert found == {
        "chunks_adopted": len(cluster.store.chunks()),
        "pages_adopted": 10,
        "bytes_adopted": 10 * 65_536,
        "segments_sealed": 0,
        "segments_scanned": 1,
        "pages_recovered": 10,
    }


def test_blocks_deleted_and_not_offered_are_counted(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    blocks = chain("a", 40)
    with cluster.connect(path) as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        client.push_out(blocks)
        client.read_all(hashes_of(blocks)[:20])
        quick = {"block_tokens": 16, "prefill_tokens_per_s": 1e12, "at_depth": 0, "bytes_per_token": 4096.0}
        client.send(Report(LAYOUT, **quick))
        offered = [client.lookup(hashes_of(blocks)).offered_blocks for _ in range(3)]
        client.delete([blocks[35][0]])
        (pool,) = cluster.control.snapshot(
            lambda it: bool(it.pools) and it.pools[0].counters["blocks_deleted"] > 0
        ).pools
    assert set(offered) <= {20, 40}
    assert 20 in offered
    assert pool.counters["blocks_not_offered"] == sum(40 - it for it in offered)
    assert pool.counters["blocks_deleted"] == 5
    assert pool.gauges["breakeven_blocks"] == float("inf")


def test_blocks_for_which_a_get_finds_no_room_are_counted(cluster: Cluster) -> None:
    cluster.start()
    path = cluster.pod()
    cluster.control.set_pools(1, grant())
    blocks = chain("a", 200)  # of 12.5 MiB, where DRAM has 8
    with cluster.connect(path) as client:
        for start in range(0, 200, 50):
            parent = blocks[start - 1][0] if start else None
            client.put(parent, blocks[start : start + 50], reach=Reach.SEALED)
        held = client.get(hashes_of(blocks))
        (pool,) = cluster.control.snapshot(
            lambda it: bool(it.pools) and it.pools[0].counters["blocks_without_room"] > 0
        ).pools
    assert 50 < held.blocks < 128
    assert pool.counters["blocks_without_room"] == 200 - held.blocks
    assert pool.counters["blocks_late"] == 0


@WITH_LOOP_DEVICES
def test_raw_device_that_kvtier_node_hands_over_keeps_blocks_across_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    with disk_below(tmp_path, mib=64) as disk:
        cluster.store.config["nvme"] = {"capacity": "64Mi", "devices": [{"name": "raw", "path": disk.device}]}
        cluster.start()
        path = cluster.pod()
        cluster.node.lack("raw", "it does not exist on node node-1")
        cluster.control.set_pools(1, grant())
        blocks = chain("a", 20)
        with cluster.connect(path) as client:
            absent = cluster.control.snapshot(lambda it: it.ready)
            assert [(device.state, device.message) for device in absent.devices] == [
                ("gone", "it does not exist on node node-1")
            ]
            cluster.node.hand_over("raw", disk.node)
            cluster.control.snapshot(lambda it: [device.state for device in it.devices] == ["ready"])
            client.put(None, blocks, reach=Reach.FLUSHED)
        cluster.store.kill()
        shutil.rmtree(cluster.store.arena)
        cluster.store.arena.mkdir()
        cluster.start()
        wait_for("the killed store's movers to let go", lambda: handed_over(cluster, disk))
        cluster.control.set_pools(1, grant())
        with cluster.connect(path) as client:
            assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def handed_over(cluster: Cluster, disk: Disk) -> bool:
    try:
        cluster.node.hand_over("raw", disk.node)
    except OSError:
        return False
    return True
