"""get_into from answers in parts: what arrived is copied and verified part by part, and a bad page ends the prefix."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from kvtier_client import Client, Page, PageId, Restored, Tier
from kvtier_client.memory import aligned_pages
from kvtier_client.protocol.messages import Chunks, Get, GetReply, Release
from kvtier_client.protocol.places import PagePlace, pack_places

from tests.unit.client.faces import Face
from tests.unit.client.peer import LAYOUT, ArenaScript, Link, ScriptedAgent, chain

SIZE = 4000


def store(client: Client, count: int) -> None:
    pages = [Page(value, bytes([i + 1]) * SIZE) for i, value in enumerate(chain(count))]
    assert client.put(LAYOUT, None, pages).stored_pages == count


def right(buffers: np.ndarray, blocks: int) -> bool:
    return all((buffers[i] == i + 1).all() for i in range(blocks))


def test_parts_are_copied_in_order_and_the_hold_is_released_once(client: Client, arena: ArenaScript) -> None:
    store(client, 7)
    buffers = aligned_pages(9, SIZE)
    assert client.get_into(LAYOUT, chain(9), buffers) == Restored(7, (Tier.DRAM,) * 7)
    assert right(buffers, 7)
    assert not buffers[7:].any()
    client.lookup(LAYOUT, chain(1))
    assert arena.releases == [1]
    assert arena.gets[-1].stream


def test_first_part_is_copied_before_the_last_one_is_sent(client: Client, arena: ArenaScript) -> None:
    """Also how reads of a device and copies overlap."""
    store(client, 6)
    buffers = aligned_pages(6, SIZE)

    def wait_for_copy(part: int) -> None:
        if part == 2 and not right_within(buffers, 4, 5):
            raise OSError("parts one and two were not copied while the third was outstanding")

    arena.before_part = wait_for_copy
    assert client.get_into(LAYOUT, chain(6), buffers).blocks == 6


def right_within(buffers: np.ndarray, blocks: int, seconds: float) -> bool:
    done = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if right(buffers, blocks):
            return True
        done.wait(0.005)
    return False


def test_page_overwritten_while_later_parts_come_ends_the_prefix(client: Client, arena: ArenaScript) -> None:
    store(client, 8)

    def overwrite(part: int) -> None:
        if part == 1:
            arena.overwrite(chain(8)[3])

    arena.before_part = overwrite
    assert client.get_into(LAYOUT, chain(8), aligned_pages(8, SIZE)) == Restored(3, (Tier.DRAM,) * 3)
    assert client.misses == {"generation": 1}
    assert client.lookup(LAYOUT, chain(8)).whole_blocks == 8
    assert arena.releases == [1]


def test_connection_lost_between_parts_leaves_the_verified_prefix(
    client: Client, agent: ScriptedAgent, arena: ArenaScript
) -> None:
    store(client, 8)

    def end(part: int) -> None:
        if part == 2:
            raise OSError("the agent is killed")

    arena.before_part = end
    buffers = aligned_pages(8, SIZE)
    assert client.get_into(LAYOUT, chain(8), buffers) == Restored(4, (Tier.DRAM,) * 4)
    assert right(buffers, 4)
    assert client.misses == {"closed": 1}
    arena.before_part = lambda _: None
    assert client.get_into(LAYOUT, chain(8), buffers).blocks == 8
    assert agent.connections == 2


def test_agent_that_stops_between_parts_leaves_the_verified_prefix_by_the_deadline(
    client: Client, arena: ArenaScript
) -> None:
    store(client, 8)
    go_on = threading.Event()
    arena.before_part = lambda part: None if part < 3 else go_on.wait(10) and None
    assert client.get_into(LAYOUT, chain(8), aligned_pages(8, SIZE), deadline_s=0.5).blocks == 6
    assert client.misses == {"timeout": 1}
    go_on.set()


@pytest.mark.parametrize("wrong", ["more-blocks-than-asked", "fewer-places-than-blocks", "a-piece-of-a-place"])
def test_nonsense_in_a_later_part_leaves_the_verified_prefix(tmp_path: Path, face: Face, wrong: str) -> None:
    place = PagePlace(1, 0, 8, 8, 0, 0)
    parts = {
        "more-blocks-than-asked": (3, pack_places([place] * 3)),
        "fewer-places-than-blocks": (2, pack_places([place])),
        "a-piece-of-a-place": (1, pack_places([place])[:-1]),
    }

    def script(link: Link) -> None:
        link.welcome()
        ask = link.receive()
        assert isinstance(ask, Get)
        descriptor = os.memfd_create("chunk")
        os.ftruncate(descriptor, 4096)
        link.send(Chunks([1]), [descriptor])
        os.close(descriptor)
        link.send(GetReply(ask.request_id, 1, pack_places([place]), 7, 1000, True))
        blocks, places = parts[wrong]
        link.send(GetReply(ask.request_id, blocks, places, 7, 1000, True))
        link.receive()

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        assert client.get_into(LAYOUT, chain(3), [bytearray(8) for _ in range(3)]).blocks == 1
        assert client.misses == {"protocol": 1}


def test_part_in_answer_to_a_get_in_place_is_nonsense(tmp_path: Path, face: Face) -> None:
    def script(link: Link) -> None:
        link.welcome()
        ask = link.receive()
        link.send(GetReply(ask.request_id, 0, b"", 0, 0, True))
        link.receive()

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        assert client.get(LAYOUT, chain(3)).blocks == 0
        assert client.misses == {"protocol": 1}


@pytest.mark.parametrize("size", [SIZE + 1, SIZE - 1])
def test_buffer_of_another_size_ends_the_prefix(client: Client, size: int) -> None:
    store(client, 6)
    buffers = [bytearray(SIZE) for _ in range(3)] + [bytearray(size)] + [bytearray(SIZE) for _ in range(2)]
    assert client.get_into(LAYOUT, chain(6), buffers).blocks == 3
    assert client.misses == {"size_mismatch": 1}


GROUPS = [PageId(0, 0), PageId(1, 0, trailing=2)]


def store_groups(client: Client, blocks: int) -> None:
    """Full pages of every block, and what a window of two blocks needs of the last ones."""
    pages = [
        Page(value, bytes([16 * (i + 1) + page.group]) * SIZE, page)
        for i, value in enumerate(chain(blocks))
        for page in GROUPS
        if not page.trailing or i >= blocks - 2
    ]
    assert client.put(LAYOUT, None, pages).stored_pages == len(pages)


def test_trailing_pages_come_for_the_last_blocks_only(client: Client, arena: ArenaScript) -> None:
    store_groups(client, 5)
    assert client.lookup(LAYOUT, chain(6), pages=GROUPS).whole_blocks == 5
    with client.get(LAYOUT, chain(6), pages=GROUPS) as held:
        expected = [(i, GROUPS[0]) for i in range(3)] + [(i, page) for i in (3, 4) for page in GROUPS]
        assert (held.blocks, held.keys, held.intact()) == (5, expected, 5)
        assert [view[0] for view in held.views] == [16 * (i + 1) + page.group for i, page in expected]

    buffers = [bytearray(SIZE) if not page.trailing or i >= 3 else None for i in range(5) for page in GROUPS]
    restored = client.get_into(LAYOUT, chain(5), buffers, pages=GROUPS)
    assert restored == Restored(5, (Tier.DRAM,) * 7)
    for (i, page), buffer in zip(((i, page) for i in range(5) for page in GROUPS), buffers, strict=True):
        assert buffer is None or set(buffer) == {16 * (i + 1) + page.group}
    assert not arena.gets[-1].stream


def test_overwritten_page_before_a_trailing_window_leaves_nothing(client: Client, arena: ArenaScript) -> None:
    """A shorter prefix would need trailing pages that were not brought."""
    store_groups(client, 5)
    with client.get(LAYOUT, chain(5), pages=GROUPS) as held:
        arena.overwrite(chain(5)[1])
        assert held.intact() == 0
    buffers = aligned_pages(10, SIZE)
    assert client.get_into(LAYOUT, chain(5), buffers, pages=GROUPS).blocks == 0


def test_prefix_that_no_window_cuts_keeps_its_start(client: Client, arena: ArenaScript) -> None:
    store_groups(client, 2)
    arena.overwrite(chain(2)[1])
    assert client.get_into(LAYOUT, chain(2), aligned_pages(4, SIZE), pages=GROUPS).blocks == 1


def test_trailing_page_without_a_buffer_is_a_miss(client: Client) -> None:
    store_groups(client, 3)
    buffers = [bytearray(SIZE) if not page.trailing else None for _ in range(3) for page in GROUPS]
    assert client.get_into(LAYOUT, chain(3), buffers, pages=GROUPS).blocks == 0
    assert client.misses == {"size_mismatch": 1}


def test_hold_of_another_process_keeps_and_gives_its_places(client: Client, agent: ScriptedAgent, face: Face) -> None:
    store(client, 3)
    with client.hold(LAYOUT, chain(4)) as hold:
        assert (hold.blocks, hold.seconds) == (3, 5.0)
        with face(agent.path, deadline_s=5) as worker:
            buffers = aligned_pages(3, SIZE)
            assert worker.get_into(LAYOUT, chain(3), buffers, hold=hold.id).blocks == 3
            with worker.get(LAYOUT, chain(3), hold=hold.id) as held:
                assert (held.blocks, held.hold_id) == (3, hold.id)
    client.lookup(LAYOUT, chain(1))


def test_hold_is_released_by_its_owner_or_by_id(client: Client, arena: ArenaScript) -> None:
    store(client, 1)
    hold = client.hold(LAYOUT, chain(1))
    client.get(LAYOUT, chain(1), hold=hold.id).release()
    client.lookup(LAYOUT, chain(1))
    assert arena.releases == []
    hold.release()
    hold.release()
    assert client.release(77)
    client.lookup(LAYOUT, chain(1))
    assert arena.releases == [hold.id, 77]


def test_lapsed_hold_is_replaced_by_one_that_is_released(tmp_path: Path, face: Face) -> None:
    """An agent that does not know the hold any more makes another, which then is the call's own."""
    released: list[int] = []

    def script(link: Link) -> None:
        link.welcome()
        while True:
            match link.receive():
                case Get() as ask:
                    link.send(GetReply(ask.request_id, 0, b"", 9, 1000))
                case Release(hold):
                    released.append(hold)

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        client.get(LAYOUT, chain(1), hold=5).release()
        client.get_into(LAYOUT, chain(1), [bytearray(8)], hold=5)
        client.get(LAYOUT, chain(1)).release()
    assert released == [9, 9, 9]


def test_parts_are_shown_in_place_in_chain_order(client: Client, arena: ArenaScript) -> None:
    store(client, 5)
    shown: list[tuple[int, list[int]]] = []

    def visit(first_block: int, views: list[memoryview]) -> None:
        shown.append((first_block, [view[0] for view in views]))
        assert all(view.readonly for view in views)

    assert client.read(LAYOUT, chain(6), visit) == Restored(5, (Tier.DRAM,) * 5)
    assert shown == [(0, [1, 2]), (2, [3, 4]), (4, [5])]
    client.lookup(LAYOUT, chain(1))
    assert arena.releases == [1]


def test_page_overwritten_during_its_visit_does_not_count(client: Client, arena: ArenaScript) -> None:
    store(client, 6)
    visited: list[int] = []

    def visit(first_block: int, views: list[memoryview]) -> None:
        visited.append(first_block)
        if first_block == 2:
            arena.overwrite(chain(6)[3])
        assert len(views) == 2

    assert client.read(LAYOUT, chain(6), visit).blocks == 3
    assert visited == [0, 2]
    assert client.misses == {"generation": 1}


def test_what_a_visit_raises_is_the_callers_and_ends_the_call(client: Client, agent: ScriptedAgent) -> None:
    store(client, 4)

    def visit(first_block: int, views: list[memoryview]) -> None:
        raise ZeroDivisionError(f"{len(views)} views from {first_block}")

    with pytest.raises(ZeroDivisionError, match="2 views from 0"):
        client.read(LAYOUT, chain(4), visit)
    assert client.lookup(LAYOUT, chain(4)).whole_blocks == 4
    assert agent.connections == 2
    assert not client.misses
