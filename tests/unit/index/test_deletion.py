"""Deletion, and expiry, which names what is to be deleted."""

from __future__ import annotations

import pytest

from tests.unit.index.pool import KEY, LAYOUT, OTHER_KEY, Pool, hash_of

TAIL = (7, 0, 2)


@pytest.fixture
def pool() -> Pool:
    return Pool(32)


def deleted(pool: Pool, name: str) -> tuple[str, list[tuple[int, int]]]:
    hashes, slots = pool.index.delete(LAYOUT, hash_of(name))
    return "".join(sorted(chr(hashes[at]) for at in range(0, len(hashes), 32))), slots


def test_deletion_takes_the_block_and_all_below_it(pool: Pool) -> None:
    pool.store("abc", keys=[KEY, OTHER_KEY])
    pool.store("x", parent="b")
    pool.store("y", parent="a")
    names, slots = deleted(pool, "b")
    assert names == "bcx"
    assert len(slots) == 5
    assert (pool.found("abc"), pool.found("ay"), pool.index.blocks) == ("a", "ay", 2)
    pool.index.check()
    assert deleted(pool, "b") == ("", [])
    assert pool.index.delete(b"M" * 32, hash_of("b")) == (b"", [])


def test_slots_of_deleted_pages_are_not_used_before_they_are_cleared(pool: Pool) -> None:
    pool.store("a" + "".join(chr(code) for code in range(48, 79)))
    _, slots = deleted(pool, "a")
    assert len(slots) == 32
    assert pool.reserve("x") == []
    pool.index.free_deleted(slots[:1])
    assert len(pool.reserve("xy")) == 1
    pool.index.free_deleted(slots)
    pool.index.free_deleted([*slots, (9, 0), (1, 99)])
    pool.index.check()
    assert pool.index.slots_in_use == 1


def test_slot_of_a_deleted_page_that_is_held_waits_for_both(pool: Pool) -> None:
    pool.store("a")
    held = pool.index.hold(LAYOUT, [hash_of("a")], [KEY], 1.0)
    _, slots = deleted(pool, "a")
    held.release()
    assert pool.index.slots_in_use == 1
    pool.index.free_deleted(slots)
    assert pool.index.slots_in_use == 0
    pool.index.check()


def test_page_that_was_filled_after_its_deletion_is_to_be_cleared_too(pool: Pool) -> None:
    pool.store("a")
    b, c = pool.reserve("bc", parent="a")
    deleted(pool, "a")
    assert pool.commit([b]) == 0
    pool.index.abort([c])
    late = pool.index.take_late()
    assert len(late) == 2
    assert pool.index.slots_in_use == 3
    pool.index.free_deleted(late)
    assert pool.index.slots_in_use == 1
    pool.index.check()


def test_batch_that_waits_for_the_one_above_it_is_deleted_with_that(pool: Pool) -> None:
    a = pool.reserve("a")
    pool.commit(pool.reserve("b", parent="a"))
    deleted(pool, "a")
    pool.index.check()
    pool.commit(a)
    assert len(pool.index.take_late()) == 2
    assert pool.found("ab") == ""


def test_deletion_takes_copies_on_nvme(pool: Pool) -> None:
    pool.store("ab", segment=1)
    deleted(pool, "b")
    assert (pool.index.nvme_pages, pool.index.segment_live(1)[0]) == (1, 1)
    assert pool.store("b", parent="a") != []
    pool.index.check()


def test_chains_expire_by_the_time_they_were_stored(pool: Pool) -> None:
    pool.store("ab")
    pool.now = 2000.0
    pool.store("c", parent="b")
    pool.store("x")
    pool.index.touch(LAYOUT, [hash_of("a")], 9000.0)
    assert pool.index.expire(1000.0, 9) == []
    assert pool.index.expire(1000.5, 9) == [(LAYOUT, hash_of("a"))]
    assert pool.index.expire(5000.0, 9) == [(LAYOUT, hash_of("a")), (LAYOUT, hash_of("x"))]
    assert pool.index.expire(5000.0, 1) == [(LAYOUT, hash_of("a"))]
    deleted(pool, "a")
    assert pool.index.expire(5000.0, 9) == [(LAYOUT, hash_of("x"))]


def test_floating_block_expires_before_the_parent_that_came_later(pool: Pool) -> None:
    pool.store("b", parent="a", keys=[TAIL])
    pool.now = 2000.0
    pool.store("a", keys=[TAIL])
    assert [hash_ for _, hash_ in pool.index.expire(1500.0, 9)][:1] == [hash_of("a")]
    pool.index.check()
