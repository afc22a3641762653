"""Puts: cut into pieces that overlap, from staging that several puts share and that callers may fill themselves."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from kvtier_client import Client, Page, PageId, Reach, Stored
from kvtier_client.failures import Failure
from kvtier_client.protocol.messages import Done, Put, PutReply, RefusalCode, Refused, Stage
from kvtier_client.putting import Piece, cut_into_pieces
from kvtier_client.staging import StagingPool

from tests.unit.client.faces import Face
from tests.unit.client.peer import LAYOUT, ArenaScript, Link, ScriptedAgent, chain, open_descriptors

KIB = 1024
STAGING_DESCRIPTORS = 2
"""The memfd's, and the copy that Python's mmap keeps."""


def pages(*blocks: int) -> list[Page]:
    """A page of so many bytes for each block."""
    return [Page(value, b"x" * size) for value, size in zip(chain(len(blocks)), blocks, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([100], [(None, 0, 1, 4096)]),
        ([4096, 4097], [(None, 0, 1, 4096), (0, 1, 2, 8192)]),
        ([4096, 4096, 4096], [(None, 0, 2, 8192), (1, 2, 3, 4096)]),
        ([16384, 1], [(None, 0, 1, 16384), (0, 1, 2, 4096)]),
    ],
    ids=["nothing", "one", "second-does-not-fit", "two-fit", "a-block-above-a-piece"],
)
def test_pieces_are_whole_blocks_with_chained_parents(
    sizes: list[int], expected: list[tuple[int | None, int, int, int]]
) -> None:
    parents = [(None if parent is None else chain(5)[parent], *rest) for parent, *rest in expected]
    assert cut_into_pieces(None, pages(*sizes), sizes, 8192, 65536) == [Piece(*piece) for piece in parents]


def test_pages_of_one_block_stay_in_one_piece() -> None:
    first, second = chain(2)
    shards = [PageId(0, 0), PageId(0, 1), PageId(0, 2)]
    put = [Page(value, b"x", shard) for value in (first, second) for shard in shards]
    pieces = cut_into_pieces(b"p" * 16, put, [4096] * 6, 16384, 65536)
    assert pieces == [Piece(b"p" * 16, 0, 3, 12288), Piece(first, 3, 6, 12288)]


def test_block_above_the_staging_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 12288 bytes of staging, of 8192"):
        cut_into_pieces(None, pages(9000), [9000], 4096, 8192)


def test_next_piece_is_copied_while_the_agent_takes_one(tmp_path: Path, face: Face) -> None:
    """The agent that answers only when it sees the second piece in the staging gets to answer."""
    seen: list[bool] = []

    def script(link: Link) -> None:
        link.welcome()
        staging = -1
        puts = 0
        while True:
            match link.receive():
                case Stage(request_id):
                    staging = link.descriptors[-1]
                    link.send(Done(request_id))
                case Put() as put:
                    puts += 1
                    if puts == 1:
                        seen.append(appears(staging, b"second", 5))
                    link.send(PutReply(put.request_id, len(put.pages), 0, Reach.DRAM))

    data = [Page(chain(2)[0], b"first" * 1000), Page(chain(2)[1], b"second" * 1000)]
    with (
        ScriptedAgent(tmp_path / "agent.sock", script) as agent,
        face(agent.path, staging_bytes=64 * KIB, deadline_s=5) as client,
    ):
        assert client.put(LAYOUT, None, data) == Stored(2, 0, Reach.DRAM)
    assert seen == [True]


WINDOW = PageId(1, 0, 2)


@pytest.mark.parametrize(
    ("kinds", "asked"),
    [
        ([PageId(), PageId(), PageId()], ["dram", "dram", "flushed"]),
        ([PageId(0, 1), PageId(), PageId()], ["flushed", "flushed", "flushed"]),
        ([WINDOW, WINDOW, WINDOW], ["flushed", "flushed", "flushed"]),
    ],
    ids=["full-pages", "of-different-shards", "trailing-pages"],
)
def test_last_piece_waits_for_all_where_it_can_tell_of_them(
    agent: ScriptedAgent, arena: ArenaScript, face: Face, kinds: list[PageId], asked: list[str]
) -> None:
    arena.reached = lambda put: put.reach
    data = [Page(value, b"x" * 4000, kind) for value, kind in zip(chain(3), kinds, strict=True)]
    with face(agent.path, staging_bytes=32 * KIB, deadline_s=5) as client:
        assert client.put(LAYOUT, None, data, reach=Reach.FLUSHED) == Stored(3, 0, Reach.FLUSHED)
        assert [put.reach for put in arena.puts] == asked
        arena.reached = lambda put: None if put is arena.puts[3] else put.reach
        assert client.put(LAYOUT, None, data, reach=Reach.FLUSHED).reached is None


def appears(descriptor: int, what: bytes, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what in os.pread(descriptor, 64 * KIB, 0):
            return True
        time.sleep(0.005)
    return False


def test_puts_of_one_client_need_not_take_turns(tmp_path: Path, face: Face) -> None:
    """Each is answered only once all four have come."""
    together = threading.Barrier(4)

    def script(link: Link) -> None:
        link.welcome()
        while True:
            match link.receive():
                case Stage(request_id):
                    link.send(Done(request_id))
                case Put() as put:
                    together.wait(5)
                    link.send(PutReply(put.request_id, 1, 0, Reach.DRAM))

    with (
        ScriptedAgent(tmp_path / "agent.sock", script) as agent,
        face(agent.path, staging_bytes=64 * KIB, put_deadline_s=10) as client,
    ):
        stored: list[Stored] = []
        threads = [
            threading.Thread(
                target=lambda n=n: stored.append(client.put(LAYOUT, None, [Page(chain(4)[n], b"x" * 8000)]))
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stored == [Stored(1, 0, Reach.DRAM)] * 4
        assert not client.misses


def test_put_from_staging_is_not_copied(agent: ScriptedAgent, arena: ArenaScript, face: Face) -> None:
    with face(agent.path, deadline_s=5) as client:
        with client.staging(8192) as memory:
            memory[:4000] = b"a" * 4000
            memory[4096:8096] = b"b" * 4000
            data = [Page(value, memory[at : at + 4000]) for value, at in zip(chain(2), (0, 4096), strict=True)]
            stored = client.put(LAYOUT, None, data)
            assert (stored, [page.offset for page in arena.puts[-1].pages]) == (Stored(2, 0, Reach.DRAM), [0, 4096])
        with client.get(LAYOUT, chain(2)) as held:
            assert [bytes(view) for view in held.views] == [b"a" * 4000, b"b" * 4000]


def test_put_partly_from_staging_is_copied(agent: ScriptedAgent, arena: ArenaScript, face: Face) -> None:
    with face(agent.path, deadline_s=5) as client:
        with client.staging(4096) as memory:
            memory[:] = b"a" * 4096
            assert client.put(LAYOUT, None, [Page(chain(2)[0], memory), Page(chain(2)[1], b"b")]).stored_pages == 2
        assert all(page.offset >= 4096 for page in arena.puts[-1].pages)
        with client.get(LAYOUT, chain(2)) as held:
            assert [bytes(view) for view in held.views] == [b"a" * 4096, b"b"]


def test_staging_put_once_is_not_put_as_another_block(agent: ScriptedAgent, face: Face) -> None:
    with face(agent.path, deadline_s=5) as client, client.staging(8192) as memory:
        assert client.put(LAYOUT, None, [Page(chain(1)[0], memory[:100])]).stored_pages == 1
        assert client.put(LAYOUT, None, [Page(chain(1)[0], memory[:100])]).reached is Reach.DRAM
        for view in (memory[:100], memory[50:120], memory[:50]):
            with pytest.raises(ValueError, match=r"pages\[0\] lies where another block was put from"):
                client.put(LAYOUT, None, [Page(b"o" * 32, view)])
        assert client.put(LAYOUT, None, [Page(b"o" * 32, memory[4096:])]).stored_pages == 1


def test_staging_without_an_agent_or_room_is_memory_all_the_same(tmp_path: Path, face: Face) -> None:
    with face(tmp_path / "nobody.sock", staging_bytes=8192) as client:
        with client.staging(8192), client.staging(4096, deadline_s=0.1) as memory:
            memory[:] = bytes(4096)
            assert client.misses == {"busy": 1}
            assert client.put(LAYOUT, None, [Page(chain(1)[0], memory)], deadline_s=0.1) == Stored()
        client.close()
        for size in (100, 0):
            with client.staging(size) as memory:
                assert memory.nbytes == size


@pytest.mark.parametrize("size", [-1, 8193])
def test_staging_of_an_impossible_size_raises(tmp_path: Path, size: int) -> None:
    with (
        Client(tmp_path / "nobody.sock", staging_bytes=8192) as client,
        pytest.raises(ValueError, match="up to 8192 bytes"),
        client.staging(size),
    ):
        pass


def test_staging_ends_with_its_context(agent: ScriptedAgent, face: Face) -> None:
    with face(agent.path, staging_bytes=8192, deadline_s=5) as client:
        for _ in range(3):
            with client.staging(8192) as memory:
                array = np.frombuffer(memory, np.uint8)
                array[:] = 7
        assert not client.misses
        with client.staging(8192) as memory:
            memory[:] = bytes(8192)
        with pytest.raises(ValueError, match="released"):
            memory[0] = 1


def test_tensor_over_staging_is_put_without_a_copy(agent: ScriptedAgent, arena: ArenaScript, face: Face) -> None:
    with face(agent.path, deadline_s=5) as client, client.staging(4096) as memory:
        tensor = torch.frombuffer(memory, dtype=torch.bfloat16)
        tensor.fill_(1.5)
        assert client.put(LAYOUT, None, [Page(chain(1)[0], tensor[:1000])]).stored_pages == 1
        assert arena.puts[-1].pages[0].offset == 0
        with client.get(LAYOUT, chain(1)) as held:
            assert bytes(held.views[0]) == tensor[:1000].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("code", [RefusalCode.BAD_STAGING, RefusalCode.NO_ROOM])
def test_refused_put_offers_new_staging_only_if_that_was_bad(tmp_path: Path, face: Face, code: RefusalCode) -> None:
    stages = 0

    def script(link: Link) -> None:
        nonlocal stages
        link.welcome()
        while True:
            match link.receive():
                case Stage(request_id):
                    stages += 1
                    link.send(Done(request_id))
                case Put() as put:
                    link.send(Refused(code, "no", put.request_id))

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        for _ in range(2):
            assert client.put(LAYOUT, None, pages(100)) == Stored()
        assert client.misses == {f"refused:{code}": 2}
    assert stages == (2 if code is RefusalCode.BAD_STAGING else 1)


def test_leases_are_given_in_order_and_a_large_one_is_not_starved() -> None:
    pool = StagingPool(16384)
    first, second = pool.lease(8192), pool.lease(8192)
    large, small = pool.lease(16384), pool.lease(4096)
    assert first.done()
    assert second.done()
    first.result().free()
    assert not large.done()
    assert not small.done()
    assert pool.try_lease(4096, second.result().staging) is None
    second.result().free()
    assert large.done()
    large.result().free()
    assert small.result().offset == 0
    pool.close()
    small.result().free()


def test_lease_that_is_given_up_lets_the_next_one_in() -> None:
    pool = StagingPool(8192)
    held, waiting, next_one = pool.lease(8192), pool.lease(8192), pool.lease(4096)
    assert pool.give_up(waiting).cause == "busy"
    held.result().free()
    assert next_one.done()
    assert pool.give_up(next_one).cause == "busy"
    assert pool.lease(8192).done()


def test_retired_staging_is_closed_when_its_last_lease_ends() -> None:
    before = open_descriptors()
    pool = StagingPool(8192)
    lease, other = pool.lease(4096).result(), pool.lease(4096).result()
    pool.retire(lease.staging)
    lease.free()
    fresh = pool.lease(8192).result()
    assert fresh.staging is not lease.staging
    assert open_descriptors() == before + 2 * STAGING_DESCRIPTORS
    other.free()
    other.free()
    assert open_descriptors() == before + STAGING_DESCRIPTORS
    pool.close()
    with pytest.raises(Failure, match="closed"):
        pool.lease(4096).result()
    fresh.free()
    assert open_descriptors() == before
