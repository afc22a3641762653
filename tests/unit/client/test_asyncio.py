"""What is the asyncio face's own: the loop stays free, calls go on side by side, and a cancelled one leaves nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from kvtier_client import Client, Found, Page, Restored
from kvtier_client.aio import AsyncClient
from kvtier_client.protocol.messages import Done, Lookup, LookupReply, Put, PutReply, Reach, Stage

from tests.unit.client.peer import LAYOUT, Link, ScriptedAgent, chain, open_descriptors


def answer_later(link: Link) -> None:
    """Answers lookups after a while."""
    link.welcome()
    while True:
        ask = link.receive()
        assert isinstance(ask, Lookup)
        link.stopped.wait(0.2)
        link.send(LookupReply(ask.request_id, 1, 1, 1))


async def test_calls_go_on_side_by_side_and_the_loop_stays_free(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path / "agent.sock", answer_later) as agent:
        async with AsyncClient(agent.path, deadline_s=10) as client:
            began = time.monotonic()
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            found = await asyncio.gather(*(client.lookup(LAYOUT, chain(1)) for _ in range(16)))
            ticking.cancel()
            assert found == [Found(1, 1, 1)] * 16
            assert 0.4 <= time.monotonic() - began < 3
            assert agent.connections == 8
            assert ticks > 10
            assert not client.misses


async def test_cancelled_call_costs_its_connection_alone(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path / "agent.sock", answer_later) as agent:
        async with AsyncClient(agent.path, deadline_s=10) as client:
            call = asyncio.create_task(client.lookup(LAYOUT, chain(1)))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await client.lookup(LAYOUT, chain(1)) == Found(1, 1, 1)
            assert agent.connections == 2
            assert not client.misses


async def test_calls_cancelled_while_they_wait_for_a_connection_leave_it_to_others(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path / "agent.sock", answer_later) as agent:
        async with AsyncClient(agent.path, deadline_s=10) as client:
            calls = [asyncio.create_task(client.lookup(LAYOUT, chain(1))) for _ in range(20)]
            await asyncio.sleep(0.1)
            for call in calls[8:16]:
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert outcomes[:8] + outcomes[16:] == [Found(1, 1, 1)] * 12
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[8:16])
            assert agent.connections == 8


async def test_cancelled_put_never_gives_its_staging_to_another(tmp_path: Path) -> None:
    stages = 0
    arrived = threading.Event()

    def script(link: Link) -> None:
        nonlocal stages
        link.welcome()
        while True:
            match link.receive():
                case Stage(request_id):
                    stages += 1
                    link.send(Done(request_id))
                case Put() as put:
                    if stages == 1:
                        arrived.set()
                        link.stopped.wait(10)
                    link.send(PutReply(put.request_id, 1, 0, Reach.DRAM))

    before = open_descriptors()
    with ScriptedAgent(tmp_path / "agent.sock", script) as agent:
        async with AsyncClient(agent.path, staging_bytes=8192, deadline_s=5) as client:
            first = asyncio.create_task(client.put(LAYOUT, None, [Page(chain(1)[0], b"first")]))
            await asyncio.to_thread(arrived.wait, 5)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await client.put(LAYOUT, None, [Page(chain(1)[0], b"other" * 1000)])).stored_pages == 1
        assert stages == 2
        agent.stop()
    await asyncio.sleep(0)
    assert open_descriptors() <= before


async def test_cancelled_call_ends_when_no_thread_uses_its_memory_any_more(agent: ScriptedAgent) -> None:
    begun, ended = threading.Event(), threading.Event()

    def visit(first_block: int, views: list[memoryview]) -> None:
        begun.set()
        time.sleep(0.3)
        ended.set()
        assert (first_block, len(views)) == (0, 2)

    async with AsyncClient(agent.path, deadline_s=10) as client:
        await client.put(LAYOUT, None, [Page(value, b"x" * 4000) for value in chain(4)])
        call = asyncio.create_task(client.read(LAYOUT, chain(4), visit))
        await asyncio.to_thread(begun.wait, 5)
        for _ in range(3):
            call.cancel()
            await asyncio.sleep(0.01)
        assert not ended.is_set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended.is_set()
        assert (await client.lookup(LAYOUT, chain(4))).whole_blocks == 4


async def test_call_past_its_deadline_is_a_miss(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path / "agent.sock", answer_later) as agent:
        async with AsyncClient(agent.path) as client:
            assert await client.lookup(LAYOUT, chain(1), deadline_s=0.05) == Found()
            assert client.misses == {"timeout": 1}


async def test_both_faces_see_each_others_blocks(agent: ScriptedAgent) -> None:
    data = [Page(value, bytes([i + 1]) * 4000) for i, value in enumerate(chain(4))]
    with Client(agent.path, deadline_s=5) as threads:
        async with AsyncClient(agent.path, deadline_s=5) as client:
            assert (await client.put(LAYOUT, None, data)).stored_pages == 4
            buffers = np.zeros((4, 4000), np.uint8)
            assert (await asyncio.to_thread(threads.get_into, LAYOUT, chain(4), buffers)).blocks == 4
            async with await client.get(LAYOUT, chain(4)) as held:
                assert (held.blocks, held.intact()) == (4, 4)
                assert all((np.frombuffer(view, np.uint8) == buffers[i]).all() for i, view in enumerate(held.views))


def test_one_client_serves_one_loop_after_another(agent: ScriptedAgent) -> None:
    client = AsyncClient(agent.path, deadline_s=5)
    for _ in range(3):
        assert asyncio.run(client.get_into(LAYOUT, chain(1), [bytearray(8)])) == Restored()
    client.close()
    assert agent.connections == 1
    assert not client.misses
