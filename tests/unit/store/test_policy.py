"""How a pool gets memory for its pages, one case per rule."""

from __future__ import annotations

import pytest
from kvtier_agent.store.arena_format import CHUNK_TARGET_BYTES, PAGE, decide_geometry
from kvtier_agent.store.policy import (
    UNLIMITED,
    Await,
    ChunkView,
    GiveBack,
    Grow,
    NoRoom,
    RoomView,
    chunk_target_bytes,
    decide_exchange,
    decide_growth,
    decide_room,
    decide_surplus,
    most_slots,
)

MIB = 1 << 20
OURS, THEIRS = "pool-1", "pool-2"


def view(
    *,
    used: int = 0,
    total: int | None = None,
    quota: int = 100 * MIB,
    capacity: int = 100 * MIB,
    crowded: bool = False,
    busy: bool = False,
    for_load: bool = False,
) -> RoomView:
    return RoomView(
        OURS,
        used,
        used if total is None else total,
        quota,
        capacity,
        PAGE,
        crowded=crowded,
        busy=busy,
        for_load=for_load,
    )


def chunk(
    id_: int,
    last_use: float = 0.0,
    *,
    pool: str = OURS,
    slot_bytes: int = PAGE,
    idle: bool = True,
) -> ChunkView:
    return ChunkView(pool, id_, slot_bytes, 8, 8, idle, last_use)


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
    assert isinstance(decide_room(view(), PAGE, [chunk(1)]), Grow)


def test_room_at_the_quota_comes_from_the_pools_own_coldest_idle_chunk() -> None:
    chunks = [chunk(1, 5.0), chunk(2, 3.0), chunk(3, 1.0, idle=False), chunk(4, 0.0, pool=THEIRS)]
    chunks.append(chunk(5, 0.0, slot_bytes=MIB))
    assert decide_room(view(used=100 * MIB, capacity=200 * MIB), MIB, chunks) == GiveBack(OURS, 2)


def test_chunk_of_the_same_class_is_given_back_for_pages_from_nvme_only_and_last() -> None:
    """What could go from it the index would have evicted: a put's pages may hang on the rest."""
    assert isinstance(decide_room(view(used=100 * MIB), PAGE, [chunk(1)]), NoRoom)
    assert decide_room(view(used=100 * MIB, for_load=True), PAGE, [chunk(1)]) == GiveBack(OURS, 1)
    both = [chunk(1, 1.0), chunk(2, 2.0, slot_bytes=MIB)]
    assert decide_room(view(used=100 * MIB, for_load=True), PAGE, both) == GiveBack(OURS, 2)
    assert isinstance(decide_room(view(used=100 * MIB, for_load=True, busy=True), PAGE, [chunk(1)]), Await)


def test_room_at_the_capacity_comes_from_the_coldest_chunk_of_any_pool() -> None:
    chunks = [chunk(1, 5.0, slot_bytes=MIB), chunk(2, 3.0, pool=THEIRS)]
    assert decide_room(view(used=10 * MIB, total=100 * MIB), PAGE, chunks) == GiveBack(THEIRS, 2)


def test_pool_with_all_the_pages_it_has_index_for_gets_no_chunk_and_none_of_others() -> None:
    chunks = [chunk(1, 5.0), chunk(2, 3.0, pool=THEIRS)]
    assert decide_growth(view(crowded=True), MIB) is None
    assert decide_room(view(crowded=True), MIB, chunks) == GiveBack(OURS, 1)


def test_held_chunks_are_never_given_back() -> None:
    step = decide_room(view(used=100 * MIB), PAGE, [chunk(1, idle=False)])
    assert isinstance(step, NoRoom)
    assert "held by readers" in step.reason


def test_room_waits_while_pages_are_being_written() -> None:
    chunks = [chunk(1, 5.0, idle=False), chunk(2, 6.0, slot_bytes=MIB)]
    assert isinstance(decide_room(view(used=100 * MIB, busy=True), PAGE, chunks), Await)
    assert decide_room(view(used=100 * MIB), PAGE, chunks) == GiveBack(OURS, 2)


def test_colder_chunk_of_another_class_goes_before_anything_is_waited_for() -> None:
    chunks = [chunk(1, 5.0, idle=False), chunk(2, 4.0, slot_bytes=MIB)]
    assert decide_room(view(used=100 * MIB, busy=True), PAGE, chunks) == GiveBack(OURS, 2)


@pytest.mark.parametrize("limits", [{"quota": MIB}, {"capacity": MIB}], ids=["quota", "capacity"])
def test_page_larger_than_the_limit_has_no_room_and_nothing_goes_for_it(limits: dict[str, int]) -> None:
    step = decide_room(view(**limits), 2 * MIB, [chunk(1)])
    assert isinstance(step, NoRoom)
    assert f"{MIB}" in step.reason


@pytest.mark.parametrize(
    ("size", "mean", "expected"), [(MIB, 0, UNLIMITED), (MIB, 4096, 256), (0, 4096, 0)], ids=["no-mean", "mean", "none"]
)
def test_pages_are_limited_to_what_the_index_has_memory_for(size: int, mean: int, expected: int) -> None:
    assert most_slots(size, mean) == expected


def test_class_that_runs_short_gets_the_chunk_that_went_cold_before_all_its_own() -> None:
    cold, warm = chunk(1, 1.0, slot_bytes=MIB), chunk(2, 9.0, slot_bytes=MIB)
    assert decide_exchange([cold, warm, chunk(3, 2.0), chunk(4, 5.0)], [PAGE]) == cold
    assert decide_exchange([warm, chunk(3, 2.0), chunk(4, 5.0)], [PAGE]) is None
    assert decide_exchange([cold, warm, chunk(3, 2.0)], []) is None


def surplus(chunks: list[ChunkView], retired: set[int], over: set[str], *, full: bool = False) -> int | None:
    found = decide_surplus(chunks, retired, over, over_capacity=full)
    return found.id if found else None


def test_retired_chunks_go_first_then_those_over_a_quota_then_those_over_the_capacity() -> None:
    chunks = [chunk(1, 9.0), chunk(2, 5.0), chunk(3, 1.0, pool=THEIRS), chunk(4, 0.0, idle=False)]
    assert surplus(chunks, {1, 4}, {OURS}, full=True) == 1
    assert surplus(chunks, {4}, {OURS}, full=True) == 2
    assert surplus(chunks, set(), set(), full=True) == 3
    assert surplus(chunks, {4}, set()) is None
