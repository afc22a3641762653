"""Puts: what is new, what is refused, and how pages come into the tree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kvtier_index import BUSY, FRESH, KNOWN, Key, Refused

from tests.unit.index.pool import FOREVER, KEY, LAYOUT, OTHER_KEY, SLOT, Pool, hash_of

TAIL = (7, 0, 2)


@pytest.fixture
def pool() -> Pool:
    return Pool(16)


def states(pool: Pool, names: str, parent: str | None = None, keys: Sequence[Key] = (KEY,)) -> list[int]:
    return pool.index.check_put(LAYOUT, hash_of(parent) if parent else None, pool.given(names, keys))


def refusal(
    pool: Pool, names: str, parent: str | None = None, keys: Sequence[Key] = (KEY,), size: int = SLOT
) -> tuple[str, int]:
    """Code and place of the refusal, the same of both calls."""
    pages, above = pool.given(names, keys, size), hash_of(parent) if parent else None
    with pytest.raises(Refused) as checked:
        pool.index.check_put(LAYOUT, above, pages)
    return checked.value.args[:2]


def test_put_is_told_apart_into_known_new_and_busy_pages(pool: Pool) -> None:
    pool.store("ab")
    pool.reserve("c", parent="b")
    assert states(pool, "abcd") == [KNOWN, KNOWN, BUSY, BUSY]
    assert states(pool, "d", parent="c") == [BUSY]
    assert states(pool, "x", parent="b") == [FRESH]
    assert states(pool, "ab", keys=[KEY, OTHER_KEY]) == [KNOWN, FRESH, KNOWN, FRESH]
    assert pool.index.blocks == 2


def test_page_whose_parent_lacks_it_is_refused(pool: Pool) -> None:
    pool.store("ab")
    assert refusal(pool, "c", parent="x") == ("parent_absent", 0)
    assert refusal(pool, "c", parent="b", keys=[OTHER_KEY]) == ("parent_absent", 0)
    assert refusal(pool, "b") == ("parent_absent", 0)
    assert refusal(pool, "xb") == ("parent_absent", 1)
    with pytest.raises(Refused):
        pool.reserve("c", parent="x")


def test_page_of_another_size_is_refused(pool: Pool) -> None:
    pool.store("ab")
    assert refusal(pool, "ab", size=SLOT - 1) == ("size_mismatch", 0)


def test_block_of_very_many_pages_takes_no_more() -> None:
    pool = Pool(1200)
    many = [(group, shard, 0) for group in range(2) for shard in range(512)]
    pages = pool.store("a", keys=many)
    assert pool.find("a", many) == (1, 1)
    assert states(pool, "a", keys=[many[0], many[-1]]) == [KNOWN, KNOWN]
    assert refusal(pool, "a", keys=[many[0], (2, 0, 0)]) == ("limit", 1)
    assert refusal(pool, "b", keys=[*many, (2, 0, 0)]) == ("limit", 1024)
    with pytest.raises(Refused, match="1024 pages"):
        pool.reserve("a", keys=[(2, 0, 0)])
    assert len(pages) == 1024


def test_group_of_another_kind_is_refused(pool: Pool) -> None:
    pool.store("a")
    assert refusal(pool, "b", parent="a", keys=[(0, 0, 5)]) == ("malformed", 0)
    assert refusal(pool, "x", keys=[(3, 0, 5), (3, 1, 6)]) == ("malformed", 1)


@pytest.mark.parametrize(
    ("names", "parent", "keys", "size"),
    [
        ("aba", None, [KEY], SLOT),
        ("ab", "b", [KEY], SLOT),
        ("a", None, [KEY, KEY], SLOT),
        ("a", None, [(0, 0, 0), (0, 0, 1)], SLOT),
        ("a", None, [KEY], 0),
        ("a", None, [KEY], (256 << 20) + 1),
        ("a", None, [KEY], 1 << 40),
        ("a", None, [(1 << 32, 0, 0)], SLOT),
        ("", None, [KEY], SLOT),
    ],
    ids=["cycle", "own parent", "twice", "two kinds", "empty", "large", "huge", "group", "no pages"],
)
def test_put_that_contradicts_itself_is_malformed(
    pool: Pool, names: str, parent: str | None, keys: list[tuple[int, int, int]], size: int
) -> None:
    assert refusal(pool, names, parent, keys, size)[0] == "malformed"
    pool.index.check()


def test_trailing_page_needs_its_parent_only_where_there_are_full_groups(pool: Pool) -> None:
    assert states(pool, "b", parent="a", keys=[TAIL]) == [FRESH]
    pool.store("xy", keys=[KEY, TAIL])
    assert refusal(pool, "b", parent="a", keys=[TAIL]) == ("parent_absent", 0)
    assert states(pool, "z", parent="y", keys=[TAIL]) == [FRESH]


def test_reserve_stops_where_slots_end_and_goes_on_from_there() -> None:
    pool = Pool(2)
    pages = pool.given("abc")
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pages, 0, 3, 1.0, FOREVER)
    assert ([index for index, _ in taken], stopped, busy) == ([0, 1], 2, False)
    pool.add_chunk(2, 1)
    more, stopped, busy = pool.index.reserve(LAYOUT, None, pages, 2, 3, 1.0, FOREVER)
    assert ([index for index, _ in more], stopped, busy) == ([2], 3, False)
    assert pool.commit([page for _, page in taken + more]) == 3
    assert pool.found("abc") == "abc"


def test_reserve_in_the_middle_of_a_block_knows_its_parent(pool: Pool) -> None:
    keys = [KEY, OTHER_KEY]
    pages = pool.given("abc", keys)
    taken = []
    for start in range(6):
        part, stopped, _ = pool.index.reserve(LAYOUT, None, pages, start, start + 1, 1.0, FOREVER)
        assert stopped == start + 1
        taken += part
    assert [index for index, _ in taken] == list(range(6))
    pool.commit([page for _, page in taken])
    assert pool.found("abc", keys) == "abc"
    pool.index.check()


def test_reserve_takes_no_more_slots_than_it_may(pool: Pool) -> None:
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pool.given("abc"), 0, 3, 1.0, 2)
    assert (len(taken), stopped, busy) == (2, 2, False)


def test_reserve_skips_known_pages_and_stops_at_busy_ones(pool: Pool) -> None:
    pool.store("ab")
    pool.reserve("d", parent="b")
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pool.given("abcx"), 0, 4, 1.0, FOREVER)
    assert ([index for index, _ in taken], stopped, busy) == ([2, 3], 4, False)
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pool.given("abd"), 0, 3, 1.0, FOREVER)
    assert (taken, stopped, busy) == ([], 2, True)


def test_reserve_evicts_no_ancestor_of_its_chain() -> None:
    pool = Pool(4)
    pool.store("abcd")
    assert pool.reserve("e", parent="d") == []
    assert pool.found("abcd") == "abcd"
    pool.store("d", parent="c")
    (page,) = pool.reserve("e", parent="c")
    pool.commit([page])
    assert pool.found("abcd") == "abc"
    assert pool.found("abce") == "abce"
    assert pool.index.evicted_pages == 1


def test_reserve_evicts_where_no_more_slots_may_be_in_use_although_some_are_free() -> None:
    pool = Pool(8)
    pool.store("ab")
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pool.given("xy"), 0, 2, 1.0, 2)
    assert ([index for index, _ in taken], stopped, busy) == ([0, 1], 2, False)
    assert (pool.index.slots_in_use, pool.index.evicted_pages) == (2, 2)
    assert pool.found("ab") == ""


def test_batch_that_is_committed_before_the_one_above_it_appears_with_that(pool: Pool) -> None:
    above, below = pool.reserve("ab"), pool.reserve("cd", parent="b")
    assert pool.commit(below) == 2
    assert pool.found("abcd") == ""
    pool.index.check()
    assert pool.commit(above) == 2
    assert pool.found("abcd") == "abcd"
    pool.index.check()


def test_batch_above_that_is_given_up_takes_what_waits_for_it_along(pool: Pool) -> None:
    above, below, filling = pool.reserve("ab"), pool.reserve("c", parent="b"), pool.reserve("d", parent="b")
    pool.commit(below)
    pool.index.abort(above)
    pool.index.check()
    assert pool.index.slots_in_use == 1
    assert pool.commit(filling) == 0
    assert pool.index.slots_in_use == 0
    assert pool.index.blocks == 0
    pool.index.check()


def test_aborted_put_leaves_nothing(pool: Pool) -> None:
    pool.index.abort(pool.reserve("abc", keys=[KEY, OTHER_KEY]))
    pool.index.check()
    assert (pool.index.slots_in_use, pool.index.blocks, pool.found("abc")) == (0, 0, "")
    assert pool.store("abc") != []


def test_page_cut_while_it_is_filled_is_given_back_at_commit(pool: Pool) -> None:
    (a,) = pool.store("a", segment=3)
    pages = pool.reserve("b", parent="a")
    pool.index.clear_chunk(1, 100)
    pool.index.drop_segment(3, 100)
    assert pool.commit(pages) == 0
    pool.index.check()
    assert pool.index.slots_in_use == 0
    assert a is not None


def test_slots_of_a_page_are_named_to_movers(pool: Pool) -> None:
    a, b = pool.store("ab", keys=[OTHER_KEY])
    ref = pool.refs([b])[0]
    assert (ref.layout, ref.hash, ref.parent) == (LAYOUT, hash_of("b"), hash_of("a"))
    assert (ref.group, ref.shard, ref.trailing, ref.size, ref.depth) == (1, 3, 0, SLOT, 1)
    assert (ref.chunk, ref.slot, ref.generation, ref.stored_at) == (1, 1, 1, 1000)
    assert pool.refs([a])[0].parent == b""


@pytest.mark.parametrize("number", [-1, 5, 1 << 31, 1 << 40])
def test_numbers_of_no_page_are_refused_everywhere(pool: Pool, number: int) -> None:
    pool.store("ab")
    index = pool.index
    for call in (
        lambda: index.commit([number], b"d" * 16),
        lambda: index.abort([number]),
        lambda: index.refs([number]),
        lambda: index.dirty([number]),
        lambda: index.written([number], 1, [0]),
        lambda: index.not_written([number]),
        lambda: index.finish_read([number], [], []),
        lambda: index.read_plan([number], 1, 1, 1, 1.0),
        lambda: index.worth([number]),
        lambda: index.place_of(number),
        lambda: index.places_of([0, number]),
        lambda: index.parent_page(number),
        lambda: index.stretches([0, number]),
        lambda: index.pin([number]),
        lambda: index.unpin([number]),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
    index.check()


def test_calls_out_of_turn_are_refused_and_change_nothing(pool: Pool) -> None:
    a, b = pool.store("ab")
    (c,) = pool.reserve("c", parent="b")
    index = pool.index
    for call in (
        lambda: index.commit([a], b"d" * 16),
        lambda: index.commit([c, c], b"d" * 32),
        lambda: index.commit([c], b"d" * 15),
        lambda: index.abort([b]),
        lambda: index.written([a], 1, [0]),
        lambda: index.not_written([a]),
        lambda: index.finish_read([a], [], []),
        lambda: index.unpin([a]),
        lambda: index.add_chunk(1, SLOT, 4, 0, 0, 512, b""),
        lambda: index.add_chunk(2, 100, 4, 0, 0, 512, b""),
        lambda: index.add_chunk(2, SLOT, 4, 0, 0, 512, b"odd"),
        lambda: index.add_chunk(2, SLOT, 1 << 33, 0, 0, 512, b""),
        lambda: index.clear_chunk(9, 1),
        lambda: index.stage_slots(1, b"odd"),
        lambda: index.stage_slots(9, b""),
        lambda: index.stage_entries(1, b"odd", b""),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
    assert index.dirty([a]) == [a]
    for offsets in ([1], [1 << 60], [], [0, 4096]):
        with pytest.raises(ValueError, match=r"."):
            index.written([a], 1, offsets)
    index.written([a], 1, [8192])
    assert index.place_of(a) == (1, 8192, SLOT)
    index.check()
    assert pool.found("ab") == "ab"
