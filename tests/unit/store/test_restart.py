"""Killed, ended and started again: what was acknowledged is there, what was torn or damaged is a miss."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from kvtier_agent.store import deletions
from kvtier_agent.store.arena_format import CHUNK_HEADER_BYTES, chunk_name
from kvtier_agent.store.checksums import header_checksum
from kvtier_agent.store.nvme.device import encode_superblock, plan_superblock
from kvtier_client.protocol.messages import Done, PutReply, Reach, Tier

from tests.unit.store.conftest import MakeStore
from tests.unit.store.process import POOL, WAIT_S, StoreProcess, is_running, wait_for
from tests.unit.store.rawclient import RawClient, chain, data_of, hashes_of


def test_killed_store_is_followed_by_one_that_adopts_its_arena(store: StoreProcess) -> None:
    blocks = chain("a", 30, size=40_000)
    with store.connect() as client:
        client.put(None, blocks)
        held = client.get(hashes_of(blocks))
        store.kill()
        assert [client.read(place) for place in held.places] == data_of(blocks), "the dead store's client still maps"
        store.start()
        assert [client.read(place) for place in held.places] == data_of(blocks)
        with store.connect() as other:
            after = other.get(hashes_of(blocks))
            assert {place.tier for place in after.places} == {Tier.DRAM}
            assert [other.read(place) for place in after.places] == data_of(blocks)


def test_client_of_a_killed_store_never_reads_another_block_as_its_own(store: StoreProcess) -> None:
    blocks = chain("a", 30)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.SEALED)
        held = client.get(hashes_of(blocks))
        store.kill()
        store.start()
        with store.connect() as other:
            for number in range(8):
                other.put(None, chain(f"filler-{number}", 32), reach=Reach.SEALED)
        copies = [client.read(place) for place in held.places]
    assert all(copy in (None, data) for copy, data in zip(copies, data_of(blocks), strict=True))
    assert None in copies, "no slot was reused, so nothing was shown"


def test_killed_stores_movers_end_with_it(store: StoreProcess) -> None:
    movers = store.movers()
    assert len(movers) == 2
    store.kill()
    wait_for("the movers end", lambda: not any(is_running(pid) for pid in movers))


def test_flushed_chain_outlives_the_arena(store: StoreProcess) -> None:
    blocks = chain("a", 60, size=50_000)
    with store.connect() as client:
        for start in range(0, 60, 20):
            parent = blocks[start - 1][0] if start else None
            reach = Reach.FLUSHED if start == 40 else Reach.DRAM
            reply = client.put(parent, blocks[start : start + 20], reach=reach)
        assert reply.reached == Reach.FLUSHED
    store.kill()
    shutil.rmtree(store.arena / POOL)
    with store.start().connect() as client:
        found = client.lookup(hashes_of(blocks))
        assert (found.whole_blocks, found.dram_blocks) == (60, 0)
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_ended_store_exits_cleanly_with_all_writes_flushed(store: StoreProcess) -> None:
    blocks = chain("a", 60, size=50_000)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.DRAM)
    movers = store.movers()
    assert store.terminate() == 0
    assert not any(is_running(pid) for pid in movers)
    assert "event=store.stopping flushed=True" in store.log_text()
    assert "event=task.failed" not in store.log_text()
    assert "Traceback" not in store.log_text()
    shutil.rmtree(store.arena / POOL)
    with store.start().connect() as client:
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_store_killed_at_any_moment_of_puts_keeps_what_it_acknowledged(make_store: MakeStore) -> None:
    store = make_store()
    store.config["arena"] = {"path": str(store.arena), "capacity": "48Mi"}
    store.config["nvme"]["capacity"] = "96Mi"
    store.config["pools"] = [store.pool_config(dramQuota="48Mi", nvmeQuota="96Mi")]
    dice = random.Random(7)
    acknowledged: list[list[tuple[bytes, bytes]]] = []
    for round_ in range(6):
        store.start()
        with store.connect() as client:
            for blocks in acknowledged:
                assert client.read_all(hashes_of(blocks)) == data_of(blocks)
            half_done = chain(f"round-{round_ - 1}-last", 12, size=20_000)
            assert client.put(None, half_done).reached == Reach.DRAM, "what a killed writer began can be stored"
            assert client.read_all(hashes_of(half_done)) == data_of(half_done)
        stop = threading.Timer(dice.uniform(0.0, 0.4), store.kill)
        with store.connect() as client:
            stop.start()
            number = 0
            try:
                while True:
                    name = f"round-{round_}-{number}"
                    blocks = chain(name, 12, size=20_000)
                    reply = client.put(None, blocks, reach=dice.choice(list(Reach)))
                    if isinstance(reply, PutReply) and reply.reached is not None and len(acknowledged) < 60:
                        acknowledged.append(blocks)
                    if reply is None:
                        break
                    number += 1
                    client.put(None, chain(f"round-{round_}-last", 12, size=20_000)[: dice.randrange(1, 12)])
            except OSError:
                pass
        stop.join()
    assert acknowledged


def test_second_store_on_an_arena_waits_for_the_first_and_then_serves(store: StoreProcess, tmp_path: Path) -> None:
    first = store.process
    assert first is not None
    store.config["pools"] = [store.pool_config(socket=str(tmp_path / "second.sock"))]
    store.spawn()
    wait_for("the second store waits", lambda: "event=lock.waiting" in store.log_text())
    second = store.process
    assert second is not None
    assert second.poll() is None
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S) == 0
    store.socket = tmp_path / "second.sock"
    wait_for("the second store serves", store.serves)


def test_store_waits_for_a_killed_stores_mover_that_still_runs(store: StoreProcess) -> None:
    """This process stands for a mover that hangs in a device: it keeps a mover's lock."""
    lock = os.open(store.arena / "movers" / "9.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    store.kill()
    store.spawn()
    wait_for("the successor waits", lambda: "event=lock.waiting" in store.log_text())
    os.close(lock)
    wait_for("the successor serves", store.serves)


def test_smaller_arena_gives_chunks_back_and_serves_the_rest(store: StoreProcess) -> None:
    old, recent = chain("old", 60), chain("recent", 20)
    with store.connect() as client:
        client.put(None, old, reach=Reach.FLUSHED)
        client.put(None, recent, reach=Reach.FLUSHED)
    store.kill()
    before = sum(chunk.stat().st_blocks for chunk in store.chunks())
    store.config["arena"]["capacity"] = "4Mi"
    with store.start().connect() as client:
        wait_for("chunks are given back", lambda: store.chunk_bytes() <= 4 << 20)
        assert sum(chunk.stat().st_blocks for chunk in store.chunks()) < before
        assert client.lookup(hashes_of(recent)).dram_blocks == 20
        assert client.read_all(hashes_of(recent)) == data_of(recent)
        assert client.lookup(hashes_of(old)).whole_blocks == 60


def test_chunk_given_back_reads_as_a_miss_to_who_still_maps_it(store: StoreProcess) -> None:
    blocks = chain("a", 60)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.SEALED)
        held = client.get(hashes_of(blocks))
        store.kill()
        store.config["arena"]["capacity"] = "1Mi"
        store.start()
        wait_for("chunks are given back", lambda: store.chunk_bytes() <= 1 << 20)
        copies = [client.read(place) for place in held.places]
    assert None in copies
    assert all(copy in (None, data) for copy, data in zip(copies, data_of(blocks), strict=True))


def test_torn_slot_header_is_not_adopted(store: StoreProcess) -> None:
    blocks = chain("a", 10)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        place = client.get(hashes_of(blocks)).places[4]
    store.kill()
    with (store.arena / POOL / chunk_name(place.chunk)).open("rb+") as chunk:
        chunk.seek(place.generation_offset)
        chunk.write(struct.pack("<Q", place.generation + 1))
    with store.start().connect() as client:
        found = client.lookup(hashes_of(blocks))
        assert (found.whole_blocks, found.dram_blocks) == (10, 4)
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_chunk_of_another_format_keeps_the_store_from_starting_and_is_kept(store: StoreProcess) -> None:
    with store.connect() as client:
        client.put(None, chain("a", 10))
    store.kill()
    path = store.chunks()[0]
    with path.open("rb+") as chunk:
        header = bytearray(chunk.read(CHUNK_HEADER_BYTES - 8))
        header[8:12] = struct.pack("<I", 2)
        chunk.seek(0)
        chunk.write(header + struct.pack("<Q", header_checksum(bytes(header))))
    before = path.read_bytes()
    store.spawn()
    assert store.process is not None
    assert store.process.wait(WAIT_S) == 1
    assert "expected chunk format 1, found format 2" in store.log_text()
    assert path.read_bytes() == before


def test_chunk_with_a_flipped_bit_in_its_header_is_lost_and_no_more(store: StoreProcess) -> None:
    first, second = chain("a", 10), chain("b", 10, size=20_000)
    with store.connect() as client:
        client.put(None, first)
        client.put(None, second)
        damaged = {place.chunk for place in client.get(hashes_of(first)).places}
    store.kill()
    for id_ in damaged:
        with (store.arena / POOL / chunk_name(id_)).open("rb+") as chunk:
            chunk.seek(9)
            chunk.write(b"\x80")
    with store.start().connect() as client:
        assert client.lookup(hashes_of(first)).dram_blocks == 0
        assert client.read_all(hashes_of(second)) == data_of(second)
        assert client.put(None, first).reached == Reach.DRAM
        assert client.read_all(hashes_of(first)) == data_of(first)
    assert store.log_text().count("event=chunk.damaged") == len(damaged)
    assert not {chunk_name(id_) for id_ in damaged} & {it.name for it in store.chunks()}


@pytest.mark.parametrize("at", ["payload", "header"])
def test_flipped_bit_in_the_arena_of_a_dead_store_is_never_served(make_store: MakeStore, at: str) -> None:
    store = make_store()
    del store.config["nvme"]
    blocks = chain("a", 10)
    with store.start().connect() as client:
        client.put(None, blocks)
        place = client.get(hashes_of(blocks)).places[4]
    store.kill()
    with (store.arena / POOL / chunk_name(place.chunk)).open("rb+") as chunk:
        chunk.seek(place.offset + 333 if at == "payload" else place.generation_offset + 77)
        (byte,) = chunk.read(1)
        chunk.seek(-1, os.SEEK_CUR)
        chunk.write(bytes([byte ^ 4]))
    with store.start().connect() as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 4
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)[:4]
        assert client.put(blocks[3][0], blocks[4:]).stored_pages == 6
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_deleted_blocks_do_not_come_back_and_what_was_stored_after_them_stays(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    blocks, other = chain("a", 20), chain("b", 5)
    with store.start().connect() as client:
        client.put(None, blocks)
        client.put(None, other)
        assert isinstance(client.delete([blocks[10][0], b"absent".ljust(32)]), Done)
        assert client.lookup(hashes_of(blocks)).whole_blocks == 10
    store.kill()
    with store.start().connect() as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 10
        assert client.read_all(hashes_of(other)) == data_of(other)
        assert client.put(blocks[9][0], blocks[10:]).stored_pages == 10
        client.delete(hashes_of(other))
    store.kill()
    with store.start().connect() as client:
        assert client.read_all(hashes_of(blocks)) == data_of(blocks), "stored after their deletion"
        assert client.lookup(hashes_of(other)).whole_blocks == 0


def test_chain_that_was_read_last_before_a_kill_leaves_last_after_it(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    store.config["pools"] = [store.pool_config(eviction="lru")]
    chains = [chain(name, 30) for name in "abcd"]
    with store.start().connect() as client:
        for blocks in chains:
            client.put(None, blocks)
        time.sleep(1.1)  # uses are noted in seconds
        client.release(client.get(hashes_of(chains[0])))
        time.sleep(6.0)  # and now and then
    store.kill()
    with store.start().connect() as client:
        assert [client.lookup(hashes_of(blocks)).whole_blocks for blocks in chains] == [30] * 4
        client.put(None, chain("e", 60))
        assert client.lookup(hashes_of(chains[0])).whole_blocks == 30
        assert sum(client.lookup(hashes_of(blocks)).whole_blocks for blocks in chains[1:]) <= 35


def test_deletion_of_a_block_that_left_the_index_holds_after_a_restart(make_store: MakeStore) -> None:
    """Its slot keeps the page's bytes and commit word until another page takes it."""
    store = make_store()
    del store.config["nvme"]
    blocks = chain("a", 10)
    with store.start().connect() as client:
        client.put(None, blocks)
        client.delete([blocks[0][0]])
        client.delete(hashes_of(blocks))
    store.kill()
    with store.start().connect() as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0


def test_blocks_older_than_their_time_to_live_are_gone_also_after_a_restart(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    store.config["pools"] = [store.pool_config(ttlSeconds=3)]
    blocks = chain("a", 10)
    with store.start().connect() as client:
        client.put(None, blocks)
        assert client.lookup(hashes_of(blocks)).whole_blocks == 10
    store.kill()
    time.sleep(3.5)
    with store.start().connect() as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0, "expired before it was served"
        client.put(None, blocks)
        wait_for("they expire", lambda: client.lookup(hashes_of(blocks)).whole_blocks == 0)


def test_block_deleted_while_it_is_stored_stays_away_however_much_is_deleted_after_it(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    deleted, two_batches = chain("a", 1, size=4096), chain("b", 300, size=4096)
    with store.start().connect() as client, store.connect() as other:

        def both_have_copied() -> bool:
            assert client.put(None, two_batches).stored_pages == 300
            assert isinstance(client.delete([two_batches[0][0]]), Done)
            return all(".chunk" in Path(f"/proc/{pid}/maps").read_text() for pid in store.movers())

        wait_for("the movers take jobs, the first one first", both_have_copied)
        slow, _ = store.movers()
        os.kill(slow, signal.SIGSTOP)
        client.send_put(None, deleted)
        ask = partial(other.put, deleted[0][0], chain("below", 1, size=4096), deadline_ms=1)
        wait_for("its slot is taken, and not refused as a parent", lambda: isinstance(ask(), PutReply))
        assert isinstance(other.delete(hashes_of(deleted)), Done)
        for part in range(5):
            absent = [f"{part}/{number}".encode().ljust(32) for number in range(8192)]
            assert isinstance(other.delete(absent), Done)
        os.kill(slow, signal.SIGCONT)
        assert client.receive().stored_pages == 0
    store.kill()
    with store.start().connect() as client:
        assert client.lookup(hashes_of(deleted)).whole_blocks == 0


def test_expired_blocks_stay_away_after_a_restart_without_a_time_to_live(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    store.config["pools"] = [store.pool_config(ttlSeconds=1)]
    blocks = chain("a", 10)
    notes = store.arena / POOL / deletions.FILE_NAME
    with store.start().connect() as client:
        client.put(None, blocks)
        wait_for("they expire", lambda: client.lookup(hashes_of(blocks)).whole_blocks == 0)
        wait_for("that is noted", lambda: notes.exists() and deletions.read(notes.parent).expired)
    store.kill()
    store.config["pools"] = [store.pool_config()]
    with store.start().connect() as client:
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0
        client.put(None, blocks)
    store.kill()
    with store.start().connect() as client:
        assert client.read_all(hashes_of(blocks)) == data_of(blocks), "stored since"


def test_device_of_another_format_is_left_out_and_kept(make_store: MakeStore) -> None:
    store = make_store()
    page = bytearray(encode_superblock(plan_superblock(32 << 20, bytes(16)))[:-8])
    page[8] = 5
    content = bytes(page) + header_checksum(bytes(page)).to_bytes(8, "little") + bytes(1 << 20)
    store.device.write_bytes(content)
    with store.start().connect() as client:
        assert client.put(None, chain("a", 10), reach=Reach.FLUSHED).reached == Reach.DRAM
    assert "expected media format 1, found format 5" in store.log_text()
    assert store.device.read_bytes() == content


def test_missing_device_folder_is_left_out_and_the_store_serves(make_store: MakeStore) -> None:
    store = make_store()
    store.config["nvme"]["devices"].append({"name": "gone", "path": str(store.folder / "gone")})
    with store.start().connect() as client:
        assert client.put(None, chain("a", 10), reach=Reach.FLUSHED).reached == Reach.FLUSHED
    assert "event=device.open_failed device=gone" in store.log_text()


def test_flipped_bytes_on_nvme_are_misses_and_cut_the_chain_there(store: StoreProcess) -> None:
    blocks = chain("a", 30, size=50_000)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        client.push_out(blocks)
        flip_in_segment(store, blocks[17][1])
        held = client.get(hashes_of(blocks))
        assert held.blocks == 17
        assert [client.read(place) for place in held.places] == data_of(blocks)[:17]
        assert client.lookup(hashes_of(blocks)).whole_blocks == 17
        reply = client.put(blocks[16][0], blocks[17:], reach=Reach.FLUSHED)
        assert (reply.stored_pages, reply.reached) == (13, Reach.FLUSHED), "a lost chain can be stored again"
    assert "event=page.lost" in store.log_text()


def test_flipped_bytes_found_after_a_restart_are_misses(store: StoreProcess) -> None:
    blocks = chain("a", 20, size=50_000)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
    assert store.terminate() == 0
    shutil.rmtree(store.arena / POOL)
    flip_in_segment(store, blocks[3][1])
    with store.start().connect() as client:
        data = client.read_all(hashes_of(blocks))
        assert data == data_of(blocks)[: len(data)]
        assert len(data) <= 3


def flip_in_segment(store: StoreProcess, payload: bytes) -> None:
    """Damage the middle of `payload` where it lies on the device."""
    data = store.device.read_bytes()
    assert data.count(payload) == 1
    with store.device.open("rb+") as file:
        file.seek(data.find(payload) + 20_001)
        file.write(b"\xff\xfe")


def test_device_wiped_under_a_running_store_gives_misses(store: StoreProcess) -> None:
    blocks = chain("a", 30, size=50_000)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
        client.push_out(blocks)
        with store.device.open("rb+") as file:
            file.write(bytes(store.device.stat().st_size))
        assert client.get(hashes_of(blocks)).blocks == 0
        assert client.put(None, blocks).reached is not None


def test_restart_after_restart_serves_the_same(store: StoreProcess) -> None:
    blocks = chain("a", 100, size=30_000)
    with store.connect() as client:
        client.put(None, blocks, reach=Reach.FLUSHED)
    for _ in range(3):
        assert store.terminate() == 0
        with store.start().connect() as client:
            assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_killed_mover_fails_no_later_request(store: StoreProcess, client: RawClient) -> None:
    blocks = chain("a", 20)
    client.put(None, blocks)
    for pid in store.movers():
        os.kill(pid, signal.SIGKILL)
    wait_for("the movers are replaced", lambda: store.log_text().count("event=mover.died") == 2)
    wait_for("the movers are back", lambda: len(store.movers()) == 2)
    more = chain("b", 20)
    reply = client.put(None, more, reach=Reach.FLUSHED, deadline_ms=60_000)
    assert (reply.stored_pages, reply.reached) == (20, Reach.FLUSHED)
    assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_movers_killed_over_and_over_during_puts_lose_nothing_acknowledged(store: StoreProcess) -> None:
    ended = threading.Event()

    def kill_movers() -> None:
        while not ended.wait(0.3):
            for pid in store.movers()[:1]:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_movers)
    killer.start()
    stored = []
    try:
        with store.connect() as client:
            for number in range(12):
                blocks = chain(f"chain-{number}", 8, size=30_000)
                reply = client.put(None, blocks, reach=Reach.SEALED, deadline_ms=3_000)
                if isinstance(reply, PutReply) and reply.reached is not None:
                    stored.append(blocks)
    finally:
        ended.set()
        killer.join()
    with store.connect() as client:
        for blocks in stored:
            assert client.read_all(hashes_of(blocks), deadline_ms=60_000) == data_of(blocks)


def test_stopped_device_mover_makes_reads_misses_by_the_deadline_and_no_longer(store: StoreProcess) -> None:
    on_nvme, in_dram = chain("a", 30, size=50_000), chain("b", 3)
    with store.connect() as client:
        client.put(None, on_nvme, reach=Reach.FLUSHED)
        client.push_out(on_nvme)
        client.put(None, in_dram, reach=Reach.SEALED)
        movers = store.device_movers()
        for pid in movers:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert client.get(hashes_of(on_nvme), deadline_ms=200).blocks == 0
            assert client.read_all(hashes_of(in_dram)) == data_of(in_dram)
        finally:
            for pid in movers:
                os.kill(pid, signal.SIGCONT)
        assert client.read_all(hashes_of(on_nvme)) == data_of(on_nvme)
