"""What goes where and what has to go, one case per rule."""

from __future__ import annotations

import pytest
from kvtier_agent.store.arena_format import CHUNK_TARGET_BYTES, PAGE, decide_geometry
from kvtier_agent.store.nvme import SegmentState
from kvtier_agent.store.policy import (
    Await,
    Evict,
    GiveBack,
    Grow,
    NoRoom,
    RoomView,
    chunk_target_bytes,
    decide_reclaim,
    decide_room,
    decide_surplus_chunk,
    fits_nvme,
    is_arena_crowded,
    open_segments_limit,
    segment_target_bytes,
)

from tests.unit.store.trees import KEY, LAYOUT, POOL, Books, hash_of

MIB = 1 << 20


def view(
    books: Books, *, quota: int = 100 * MIB, capacity: int = 100 * MIB, busy: bool = False, mean_page: int = 0
) -> RoomView:
    return RoomView(books.arena, books.index, POOL, quota, capacity, PAGE, busy, mean_page)


@pytest.mark.parametrize(
    ("quota", "capacity", "expected"),
    [
        pytest.param(1 << 40, 1 << 40, CHUNK_TARGET_BYTES, id="large-pools-have-chunks-of-the-target-size"),
        pytest.param(64 * MIB, 1 << 40, 8 * MIB, id="a-small-quota-is-at-least-eight-chunks"),
        pytest.param(1 << 40, 16 * MIB, 2 * MIB, id="a-small-capacity-is-at-least-eight-chunks"),
    ],
)
def test_chunk_size_follows_quota_and_capacity(quota: int, capacity: int, expected: int) -> None:
    assert chunk_target_bytes(quota, capacity) == expected


@pytest.mark.parametrize("slot_bytes", [PAGE, 36864, 65536, 1 << 20, 48 << 20])
@pytest.mark.parametrize("alignment", [PAGE, 2 * MIB])
def test_chunk_of_any_class_holds_its_slots_without_overlap(slot_bytes: int, alignment: int) -> None:
    cut = decide_geometry(slot_bytes, 32 * MIB, alignment)
    assert cut.slots >= 1
    assert cut.payload_at >= cut.header_offset(cut.slots)
    assert cut.payload_at % PAGE == 0
    assert cut.file_bytes >= cut.payload_offset(cut.slots)
    assert cut.file_bytes % alignment == 0
    assert cut.slots == 1 or cut.file_bytes <= 32 * MIB


def test_room_below_quota_and_capacity_comes_from_a_new_chunk() -> None:
    assert isinstance(decide_room(view(Books()), PAGE), Grow)


def test_room_at_the_quota_comes_from_the_coldest_page_of_the_class() -> None:
    books = Books()
    chunk = books.chunk(4)
    coldest = books.store("a")[0]
    books.store("b")
    assert decide_room(view(books, quota=chunk.cut.file_bytes), PAGE) == Evict(coldest)


def test_room_for_another_class_at_the_quota_comes_from_the_pools_coldest_chunk() -> None:
    books = Books()
    cold, warm = books.chunk(1), books.chunk(1)
    other_pool = books.chunk(1, pool="pool-2")
    books.store("a")
    books.index.touch(books.store("b")[0].node, (KEY,))
    assert {cold.last_use, warm.last_use} != {0}
    step = decide_room(view(books, quota=sum(it.cut.file_bytes for it in (cold, warm, other_pool))), 2 * PAGE)
    assert isinstance(step, GiveBack)
    assert step.chunk.last_use == min(cold.last_use, warm.last_use)
    assert step.chunk.pool_uid == POOL


def test_room_at_the_capacity_comes_from_the_coldest_chunk_of_any_pool() -> None:
    books = Books()
    theirs = books.chunk(64, pool="pool-2")
    step = decide_room(view(books, capacity=theirs.cut.file_bytes), PAGE)
    assert step == GiveBack(theirs)


def test_held_chunk_is_never_given_back() -> None:
    books = Books()
    chunk = books.chunk(64)
    (page,) = books.store("a")
    books.index.pin(page)
    step = decide_room(view(books, quota=chunk.cut.file_bytes), 2 * PAGE)
    assert isinstance(step, NoRoom)
    assert "held by readers" in step.reason


def test_chunk_with_a_slot_being_filled_is_never_given_back() -> None:
    books = Books()
    chunk = books.chunk(64)
    slot = books.slot()
    assert isinstance(decide_room(view(books, quota=chunk.cut.file_bytes), 2 * PAGE), NoRoom)
    books.arena.release(slot)
    assert isinstance(decide_room(view(books, quota=chunk.cut.file_bytes), 2 * PAGE), GiveBack)


def test_room_waits_while_pages_are_being_written_through() -> None:
    books = Books()
    chunk = books.chunk(1)
    (page,) = books.store("a")
    books.index.pin(page)
    assert isinstance(decide_room(view(books, quota=chunk.cut.file_bytes, busy=True), PAGE), Await)


def test_page_larger_than_the_quota_has_no_room_and_is_told_why() -> None:
    step = decide_room(view(Books(), quota=MIB), 2 * MIB)
    assert isinstance(step, NoRoom)
    assert "more than the pool's quota in dram (1048576)" in step.reason


def test_surplus_after_a_lowered_quota_goes_coldest_first() -> None:
    books = Books()
    cold, warm = books.chunk(1), books.chunk(1)
    cold.last_use, warm.last_use = 1, 2
    assert decide_surplus_chunk(books.arena, {POOL: cold.cut.file_bytes}, 100 * MIB) is cold
    assert decide_surplus_chunk(books.arena, {POOL: 100 * MIB}, cold.cut.file_bytes) is cold
    assert decide_surplus_chunk(books.arena, {POOL: 100 * MIB}, 100 * MIB) is None


def test_pool_with_busy_surplus_does_not_keep_another_from_giving_back() -> None:
    books = Books()
    books.chunk(1)
    books.slot()
    theirs = books.chunk(1, pool="pool-2")
    assert decide_surplus_chunk(books.arena, {POOL: 0, "pool-2": 0}, 100 * MIB) is theirs


def test_segment_size_leaves_a_quota_at_least_eight_of_them() -> None:
    assert segment_target_bytes(1 << 40, 1 << 40) == 64 * MIB
    assert segment_target_bytes(64 * MIB, 1 << 40) == 8 * MIB
    assert segment_target_bytes(0, 1 << 40) == 0


def test_open_segments_are_one_per_device_but_at_most_a_quarter_of_the_quota() -> None:
    assert open_segments_limit(1 << 40, 64 * MIB, 4) == 4
    assert open_segments_limit(8 * MIB, MIB, 4) == 2
    assert open_segments_limit(MIB, MIB, 4) == 1


def test_reclaim_takes_the_pools_coldest_sealed_segment_at_its_quota() -> None:
    books = Books()
    warm, cold, busy, open_ = (books.segment(MIB) for _ in range(4))
    theirs = books.segment(MIB, pool="pool-2")
    warm.last_use, cold.last_use, busy.last_use, open_.last_use, theirs.last_use = 5, 3, 1, 1, 0
    busy.io, open_.state = 1, SegmentState.OPEN
    assert decide_reclaim(books.nvme, POOL, 4 * MIB, MIB) is cold
    assert decide_reclaim(books.nvme, POOL, 5 * MIB, MIB) is None


def test_reclaim_at_the_capacity_takes_the_coldest_of_all_pools() -> None:
    books = Books()
    books.segment(MIB).last_use = 5
    theirs = books.segment(MIB, pool="pool-2")
    books.nvme.capacity_bytes = 2 * MIB
    assert decide_reclaim(books.nvme, POOL, 100 * MIB, MIB) is theirs


def test_room_at_the_quota_comes_from_a_colder_chunk_of_another_class() -> None:
    books = Books()
    cold = books.chunk(4, slot_bytes=2 * PAGE)
    own = books.chunk(4)
    (page,) = books.store("a")
    quota = cold.cut.file_bytes + own.cut.file_bytes
    books.index.touch(page.node, (KEY,))
    assert decide_room(view(books, quota=quota), PAGE) == GiveBack(cold)
    cold.last_use = page.last_use + 1
    assert decide_room(view(books, quota=quota), PAGE) == Evict(page)


def test_room_at_the_capacity_comes_from_a_colder_chunk_of_another_pool() -> None:
    books = Books()
    cold = books.chunk(4, pool="pool-2")
    own = books.chunk(4)
    (page,) = books.store("a")
    books.index.touch(page.node, (KEY,))
    capacity = cold.cut.file_bytes + own.cut.file_bytes
    assert decide_room(view(books, capacity=capacity), PAGE) == GiveBack(cold)
    assert decide_room(view(books, capacity=capacity, quota=own.cut.file_bytes), PAGE) == Evict(page)


def test_pages_smaller_than_the_mean_reach_the_quota_before_its_bytes_do() -> None:
    books = Books()
    books.chunk(8)
    coldest = books.store("a")[0]
    books.store("b")
    assert not is_arena_crowded(view(books, quota=3 * 65536, mean_page=65536))
    crowded = view(books, quota=2 * 65536, mean_page=65536)
    assert is_arena_crowded(crowded)
    assert decide_room(crowded, PAGE) == Evict(coldest)


def test_pages_smaller_than_the_mean_reach_the_capacity_too_and_another_pools_chunk_goes() -> None:
    books = Books()
    theirs = books.chunk(2, pool="pool-2")
    theirs.last_use = 1
    index = books.new_index()
    index.set_slot(index.add(LAYOUT, hash_of("x"), None, KEY, PAGE), books.slot(pool="pool-2"))
    crowded = view(books, capacity=65536, mean_page=65536)
    assert is_arena_crowded(crowded)
    assert decide_room(crowded, PAGE) == GiveBack(theirs)


def test_slot_that_is_given_back_counts_no_longer() -> None:
    books = Books()
    books.chunk(2)
    slot = books.slot()
    assert (books.arena.pool_slots(POOL), books.arena.total_slots) == (1, 1)
    books.arena.release(slot)
    books.arena.claim(slot)
    books.arena.release(slot)
    assert (books.arena.pool_slots(POOL), books.arena.total_slots) == (0, 0)


def test_segment_goes_when_its_pool_has_as_many_pages_as_the_index_has_memory_for() -> None:
    books = Books()
    books.nvme.mean_page_bytes = 65536
    segment = books.segment()
    segment.entries = 32
    assert decide_reclaim(books.nvme, POOL, 33 * 65536, 0) is None
    assert decide_reclaim(books.nvme, POOL, 32 * 65536, 0) is segment
    assert not fits_nvme(books.nvme, POOL, 32 * 65536, 0)
