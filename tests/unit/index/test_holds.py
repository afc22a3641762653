"""Holds: what they pin, what they name, and when it goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kvtier_index import Hold, Key

from tests.unit.index.pool import HEADER_AT, HEADER_BYTES, KEY, LAYOUT, OTHER_KEY, PAYLOAD_AT, SLOT, Pool, hash_of

TAIL = (7, 0, 2)


@pytest.fixture
def pool() -> Pool:
    return Pool(32)


def hold(pool: Pool, names: str, keys: Sequence[Key] = (KEY,)) -> Hold:
    return pool.index.hold(LAYOUT, [hash_of(name) for name in names], keys, pool.now)


def blocks_of(pool: Pool, held: Hold) -> str:
    return "".join(ref.hash[:1].decode() for ref in pool.refs(held.pages))


def test_hold_names_the_pages_of_its_blocks_as_asked(pool: Pool) -> None:
    pool.store("abc", keys=[KEY, OTHER_KEY])
    held = hold(pool, "abcx", [OTHER_KEY, KEY])
    assert (held.blocks, held.ready_blocks(), held.missing()) == (3, 3, [])
    assert blocks_of(pool, held) == "aabbcc"
    assert [ref.group for ref in pool.refs(held.pages)] == [1, 0] * 3
    assert held.bytes() == (6 * SLOT, 0)


def test_places_say_where_the_pages_lie(pool: Pool) -> None:
    pool.store("abc", size=3000)
    held = hold(pool, "abc")
    assert held.places(1, 3) == [
        (1, PAYLOAD_AT + slot * SLOT, 3000, HEADER_AT + slot * HEADER_BYTES, 1, False) for slot in (1, 2)
    ]
    packed, chunks = held.pack_places(1, 3)
    assert (len(packed), chunks) == (80, [1])
    for start, stop in ((0, 4), (2, 1), (4, 4)):
        with pytest.raises(ValueError, match="of a hold of 3"):
            held.places(start, stop)


def test_hold_of_nothing_pins_nothing(pool: Pool) -> None:
    held = hold(pool, "ab")
    assert (held.blocks, held.pages, held.ready_blocks(), held.places(0, 0)) == (0, [], 0, [])
    held.settle(5)
    held.release()
    pool.index.check()


def test_held_pages_are_not_evicted_until_it_is_released() -> None:
    pool = Pool(3)
    pool.store("abc")
    held = hold(pool, "abc")
    assert pool.reserve("xyz") == []
    held.settle(1)
    assert len(pool.reserve("xyz")) == 2
    held.release()
    held.release()
    assert pool.found("abc") == "a"
    pool.index.check()


def test_dropped_hold_releases_its_pins() -> None:
    pool = Pool(2)
    pool.store("ab")
    held = hold(pool, "ab")
    assert pool.reserve("x") == []
    del held
    assert len(pool.reserve("x")) == 1
    pool.index.check()


def test_cut_page_keeps_its_slot_until_the_last_pin_goes(pool: Pool) -> None:
    pool.store("a")
    first, second = hold(pool, "a"), hold(pool, "a")
    _, slots = pool.index.delete(LAYOUT, hash_of("a"))
    pool.index.free_deleted(slots)
    assert pool.found("a") == ""
    first.release()
    assert second.places(0, 1)[0][0] == 1
    assert pool.index.slots_in_use == 1
    second.release()
    assert pool.index.slots_in_use == 0
    pool.index.check()


def test_block_can_be_stored_again_while_a_cut_copy_is_held(pool: Pool) -> None:
    (old,) = pool.store("a")
    held = hold(pool, "a")
    pool.index.delete(LAYOUT, hash_of("a"))
    (new,) = pool.store("a")
    assert new != old
    held.release()
    assert pool.found("a") == "a"
    pool.index.check()


def test_references_of_a_cut_page_that_is_pinned_are_whole(pool: Pool) -> None:
    _, page = pool.store("ab")
    before = pool.index.refs([page])
    pool.index.pin([page])
    pool.index.delete(LAYOUT, hash_of("a"))
    assert pool.index.refs([page]) == before
    assert pool.index.parent_page(page) is None
    pool.index.unpin([page])
    pool.index.check()


def test_hold_on_trailing_pages_settles_on_what_is_whole_in_dram(pool: Pool) -> None:
    pages = pool.store("abcd", keys=[KEY, TAIL], segment=1)
    pages += pool.store("e", parent="d", keys=[KEY, TAIL])
    held = hold(pool, "abcde", [KEY, TAIL])
    assert (held.blocks, blocks_of(pool, held)) == (5, "abcddee")
    held.release()
    # The trailing page of d leaves DRAM.
    pin = [page for page in pages if page != pages[7]]
    pool.index.pin(pin)
    assert len(pool.evict(1)) == 0
    held = hold(pool, "abcde", [KEY, TAIL])
    assert (held.blocks, held.missing(), held.ready_blocks()) == (5, [pages[7]], 3)
    assert held.bytes() == (6 * SLOT, SLOT)
    held.settle(5)
    assert (held.blocks, blocks_of(pool, held)) == (3, "abbcc")
    assert [place[5] for place in held.places(0, 3)] == [False] * 5
    pool.index.unpin(pin)
    held.release()
    pool.index.check()


def test_hold_on_trailing_pages_alone_names_the_last_ones(pool: Pool) -> None:
    pool.store("cd", parent="b", keys=[TAIL])
    held = hold(pool, "abcd", [TAIL])
    assert (held.blocks, blocks_of(pool, held), held.ready_blocks()) == (4, "cd", 4)
    assert len(held.places(0, 4)) == 2
    assert len(held.places(0, 3)) == 1
    held.settle(3)
    assert (held.blocks, held.pages) == (0, [])
    pool.index.check()


def test_pinned_prefix_stays_until_its_time(pool: Pool) -> None:
    pool.store("abc")
    hashes = [hash_of(name) for name in "abc"]
    assert pool.index.pin_prefix(LAYOUT, hashes, 2000.5, 2 * SLOT) == 2
    assert pool.index.pinned_bytes == 2 * SLOT
    assert sorted(pool.evict(32)) == ["c"]
    assert pool.index.worth([pool.page("a") or 0]) == [float("inf")]
    pool.index.unpin_expired(2000.0)
    assert pool.index.pinned_bytes == 2 * SLOT
    pool.index.unpin_expired(2001.0)
    assert pool.index.pinned_bytes == 0
    assert sorted(pool.evict(32)) == ["a", "b"]


def test_pin_of_a_prefix_can_be_renewed_and_given_up(pool: Pool) -> None:
    pool.store("ab")
    hashes = [hash_of(name) for name in "abx"]
    assert pool.index.pin_prefix(LAYOUT, hashes, 2000.0, 1 << 40) == 2
    assert pool.index.pin_prefix(LAYOUT, hashes, 3000.0, 2 * SLOT) == 2
    pool.index.unpin_expired(2500.0)
    assert pool.index.pinned_bytes == 2 * SLOT
    pool.index.check()
    assert pool.index.pin_prefix(LAYOUT, hashes[:1], 0.0, 0) == 1
    assert pool.index.pinned_bytes == SLOT
    pool.index.delete(LAYOUT, hashes[0])
    assert pool.index.pinned_bytes == 0
    pool.index.check()
