"""What leaves DRAM, in which order, and what goes with it."""

from __future__ import annotations

import pytest

from tests.unit.index.pool import FOREVER, KEY, LAYOUT, OTHER_KEY, SLOT, Pool, hash_of

TAIL = (7, 0, 2)


@pytest.fixture
def pool() -> Pool:
    return Pool(32)


def test_leaf_of_the_coldest_chain_leaves_dram_first(pool: Pool) -> None:
    pool.store("abc")
    pool.store("xy")
    for names in ("xy", "abc"):
        pool.index.touch(LAYOUT, [hash_of(name) for name in names], 2000.0)
    assert "".join(pool.evict(1)[0] for _ in range(5)) == "yxcba"


def test_chain_that_was_held_is_warmer_than_one_stored_later(pool: Pool) -> None:
    pool.store("abc")
    pool.store("xy")
    pool.index.hold(LAYOUT, [hash_of(name) for name in "abc"], [KEY], 2000.0).release()
    assert "".join(pool.evict(1)[0] for _ in range(5)) == "yxcba"


def test_chain_below_which_something_is_stored_is_warmed(pool: Pool) -> None:
    pool.store("ab")
    pool.store("x")
    pool.store("c", parent="b")
    assert "".join(pool.evict(1)[0] for _ in range(4)) == "xcba"


def test_page_that_lies_only_in_dram_stays_while_its_child_does(pool: Pool) -> None:
    _, b = pool.store("ab")
    pool.index.pin([b])
    assert not pool.index.can_evict(SLOT)
    pool.index.unpin([b])
    assert pool.index.can_evict(SLOT)
    assert pool.evict(1) == ["b"]


def test_page_with_a_copy_on_nvme_may_leave_dram_before_its_child(pool: Pool) -> None:
    _, b = pool.store("ab", segment=1)
    pool.index.pin([b])
    assert pool.evict(1) == ["a"]
    assert pool.found("ab") == "ab"


def test_pages_of_other_size_classes_are_not_evicted(pool: Pool) -> None:
    pool.store("abc")
    pool.add_chunk(2, 2, 2 * SLOT)
    pool.store("x", size=SLOT + 1)
    pool.store("y", size=2 * SLOT)
    assert len(pool.reserve("z", size=SLOT + 7)) == 1
    assert (pool.found("abc"), pool.found("x"), pool.found("y")) == ("abc", "", "y")
    assert pool.index.dram_bytes == 3 * SLOT + 2 * SLOT


def test_lost_page_cuts_all_that_hangs_below_it(pool: Pool) -> None:
    pool.store("abcd", segment=1)
    pool.store("xy", parent="b")
    pool.evict(32 - 6 + 6)
    assert pool.index.drop_segment(1, 100) == 0
    pool.index.check()
    assert (pool.index.blocks, pool.index.nvme_pages, pool.index.dram_pages) == (0, 0, 0)


def test_trailing_page_goes_with_the_last_full_page_of_its_block(pool: Pool) -> None:
    pool.store("ab", keys=[KEY, OTHER_KEY, TAIL])
    pages = [pool.page("b", key) for key in (KEY, OTHER_KEY)]
    pool.index.drop_slots(1, [pool.refs([pages[0] or 0])[0].slot])
    assert pool.page("b", TAIL) is not None
    pool.index.drop_slots(1, [pool.refs([pages[1] or 0])[0].slot])
    assert pool.page("b", TAIL) is None
    assert pool.index.blocks == 1
    pool.index.check()


def test_trailing_page_goes_alone(pool: Pool) -> None:
    (page,) = pool.store("a", keys=[TAIL])
    pool.store("b", parent="a", keys=[TAIL])
    assert pool.index.drop_slots(1, [pool.refs([page])[0].slot, 9]) == 1
    pool.index.check()
    assert (pool.page("a", TAIL), pool.index.blocks) == (None, 1)
    pool.store("a", keys=[TAIL])
    assert pool.found("ab", [TAIL]) == "ab"
    pool.index.check()


def test_old_trailing_pages_of_a_chain_that_does_not_part_go_first(pool: Pool) -> None:
    pool.store("x")
    pool.store("abcd", keys=[TAIL])
    assert survivors(pool, 2) == ["c", "d"]


def survivors(pool: Pool, evictions: int) -> list[str]:
    free = pool.index.free_slots(SLOT)
    pages = pool.given([f"!{number}" for number in range(free + evictions)])
    taken, _, _ = pool.index.reserve(b"E" * 32, None, pages, 0, len(pages), 1.0, FOREVER)
    pool.index.abort([page for _, page in taken])
    return [name for name in "abcd" if pool.page(name, TAIL) is not None]


def test_damaged_slot_is_given_up_even_while_it_is_read(pool: Pool) -> None:
    pool.store("ab", segment=1)
    held = pool.index.hold(LAYOUT, [hash_of("a")], [KEY], 1.0)
    assert pool.index.drop_slots(1, [0, 1]) == 1
    assert pool.found("ab") == ""
    held.release()
    pool.index.check()
    assert pool.index.slots_in_use == 0


def test_damaged_copy_of_a_page_on_nvme_is_read_again(pool: Pool) -> None:
    a, b = pool.store("ab", segment=1)
    assert pool.index.drop_slots(1, [0]) == 1
    assert pool.find("ab") == (2, 0)
    assert pool.index.read_plan([a, b], 1 << 20, 8, 0, 1.0) == [(1, 0, SLOT, [a])]


def test_chunk_is_cleared_in_steps_and_then_forgotten(pool: Pool) -> None:
    pool.store("abcdef")
    assert pool.index.chunks() == [(1, SLOT, 32, 6, True, 1000.0)]
    assert pool.index.clear_chunk(1, 4) == 2
    pool.index.check()
    assert pool.found("abcdef") == "ab"
    assert pool.index.free_slots(SLOT) == 0
    assert pool.index.clear_chunk(1, 4) == 0
    assert pool.index.chunks() == []
    assert pool.index.evicted_pages == 6
    pool.index.check()


def test_chunk_that_is_being_cleared_can_be_opened_again(pool: Pool) -> None:
    a, _ = pool.store("ab")
    pool.index.pin([a])
    assert pool.index.clear_chunk(1, 10) == 1
    assert pool.index.chunks()[0][3:5] == (1, False)
    assert pool.reserve("x") == []
    pool.index.reopen_chunk(1)
    pool.index.check()
    assert pool.index.free_slots(SLOT) == 31
    assert len(pool.reserve("x")) == 1


def test_retired_chunk_takes_no_pages_and_gives_none_up_for_others(pool: Pool) -> None:
    pool.store("a")
    pool.index.retire_chunks()
    assert not pool.index.can_evict(SLOT)
    assert pool.reserve("x") == []
    pool.add_chunk(2, 1)
    assert len(pool.reserve("x")) == 1
    assert pool.found("a") == "a"
    pool.index.check()


def test_generation_of_a_slot_rises_with_each_page(pool: Pool) -> None:
    generations = []
    for name in "abc":
        (page,) = pool.store(name)
        generations.append(pool.refs([page])[0].generation)
        pool.index.clear_chunk(1, 0)
        pool.index.drop_slots(1, [0])
        pool.index.reopen_chunk(1)
    assert generations == [1, 2, 3]
