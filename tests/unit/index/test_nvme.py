"""Reads from nvme, writes to it, and the upkeep of segments."""

from __future__ import annotations

import pytest

from tests.unit.index.pool import KEY, LAYOUT, OTHER_KEY, SLOT, Pool, hash_of

UNLIMITED = (1 << 40, 1 << 20, 0)


@pytest.fixture
def pool() -> Pool:
    return Pool(32)


def below(pool: Pool, names: str, segment: int = 1, at: int = 0) -> list[int]:
    """Pages of a chain that lie on nvme only."""
    pages = pool.store(names, segment=segment, at=at)
    for ref in pool.refs(pages):
        pool.index.drop_slots(ref.chunk, [ref.slot])
    return pages


def test_pages_behind_each_other_are_read_at_once(pool: Pool) -> None:
    pages = below(pool, "abcd", at=8192)
    assert pool.index.read_plan(pages, *UNLIMITED, 1.0) == [(1, 8192, 4 * SLOT, pages)]
    assert pool.find("abcd") == (4, 0)
    pool.index.finish_read(pages, [], [])
    assert pool.find("abcd") == (4, 4)
    pool.index.check()


@pytest.mark.parametrize(
    ("limits", "reads"),
    [
        ((2 * SLOT, 99, 0), [2, 2]),
        ((3 * SLOT, 99, 0), [3, 1]),
        ((1 << 40, 3, 0), [3, 1]),
        ((1, 1, 0), [1, 1, 1, 1]),
    ],
    ids=["bytes", "more bytes", "pieces", "less than a page"],
)
def test_reads_stay_within_their_limits(pool: Pool, limits: tuple[int, int, int], reads: list[int]) -> None:
    pages = below(pool, "abcd")
    assert [len(read[3]) for read in pool.index.read_plan(pages, *limits, 1.0)] == reads


def test_gaps_are_read_over_as_far_as_allowed(pool: Pool) -> None:
    pages = pool.store("abc")
    assert pool.index.dirty(pages) == pages
    pool.index.written(pages, 1, [0, 3 * SLOT, 9 * SLOT])
    pool.index.drop_slots(1, [0, 1, 2])
    read = pool.index.read_plan(pages, 1 << 40, 99, 2 * SLOT, 1.0)
    assert read == [(1, 0, 4 * SLOT, pages[:2]), (1, 9 * SLOT, SLOT, pages[2:])]


def test_pages_of_two_runs_are_read_run_by_run(pool: Pool) -> None:
    pages = pool.store("abc", keys=[KEY, OTHER_KEY])
    evens, odds = pages[::2], pages[1::2]
    pool.write(evens, 1)
    pool.write(odds, 2)
    pool.index.drop_slots(1, list(range(6)))
    plan = pool.index.read_plan(pages, *UNLIMITED, 1.0)
    assert plan == [(1, 0, 3 * SLOT, evens), (2, 0, 3 * SLOT, odds)]


def test_pages_that_are_there_or_on_their_way_are_not_read(pool: Pool) -> None:
    pages = below(pool, "ab")
    pool.index.read_plan(pages[:1], *UNLIMITED, 1.0)
    here = pool.store("x")
    assert pool.index.read_plan([*pages, *here, pages[1]], *UNLIMITED, 1.0) == [(1, SLOT, SLOT, pages[1:])]


def test_read_stops_at_the_first_page_without_a_slot() -> None:
    pool = Pool(4)
    pages = below(pool, "abcd")
    held = pool.index.hold(LAYOUT, [hash_of(name) for name in "abcd"], [KEY], 1.0)
    (other,) = pool.reserve("x")
    assert held.missing() == pages
    (read,) = pool.index.read_plan(held.missing(), *UNLIMITED, 1.0)
    assert read[3] == pages[:3]
    assert held.missing() == pages[3:]
    pool.index.finish_read(pages[:3], [], [])
    assert held.ready_blocks() == 3
    assert held.bytes() == (0, 4 * SLOT)
    assert [place[5] for place in held.places(0, 3)] == [True] * 3
    held.settle(3)
    pool.index.abort([other])
    held.release()
    pool.index.check()


def test_page_whose_payload_is_wrong_is_cut_with_all_below_it(pool: Pool) -> None:
    pages = below(pool, "abcd")
    pool.index.read_plan(pages, *UNLIMITED, 1.0)
    pool.index.finish_read(pages[:1], pages[1:2], pages[2:])
    pool.index.check()
    assert pool.find("abcd") == (1, 1)
    assert (pool.index.nvme_pages, pool.index.slots_in_use) == (1, 1)


def test_page_that_was_not_read_can_be_read_again(pool: Pool) -> None:
    pages = below(pool, "ab")
    pool.index.read_plan(pages, *UNLIMITED, 1.0)
    pool.index.finish_read([], [], pages)
    pool.index.check()
    assert pool.find("ab") == (2, 0)
    assert pool.index.read_plan(pages, *UNLIMITED, 1.0) == [(1, 0, 2 * SLOT, pages)]


def test_read_of_a_page_that_was_deleted_meanwhile_ends_without_it(pool: Pool) -> None:
    pages = below(pool, "ab")
    pool.index.read_plan(pages, *UNLIMITED, 1.0)
    assert pool.index.delete(LAYOUT, hash_of("a"))[1] == []
    pool.index.finish_read(pages[:1], pages[1:], [])
    late = pool.index.take_late()
    assert len(late) == 1
    pool.index.check()
    assert pool.index.slots_in_use == 1
    pool.index.free_deleted(late)
    assert (pool.index.slots_in_use, pool.index.take_late()) == (0, [])
    pool.index.check()


def test_only_pages_that_lie_in_dram_alone_are_dirty(pool: Pool) -> None:
    a, b = pool.store("ab", segment=1)
    c, d = pool.store("cd", parent="b")
    assert pool.index.dirty([a, b, c, d]) == [c, d]
    assert pool.index.dirty([a, b, c, d]) == []
    pool.index.not_written([c])
    pool.index.written([d], 2, [0])
    assert pool.index.dirty([a, b, c, d]) == [c]


def test_page_that_is_being_written_stays(pool: Pool) -> None:
    pages = pool.store("a")
    pool.index.dirty(pages)
    assert not pool.index.can_evict(SLOT)
    pool.index.delete(LAYOUT, hash_of("a"))
    pool.index.written(pages, 1, [0])
    assert pool.index.nvme_pages == 0
    pool.index.check()


def test_next_dirty_pages_are_prefixes_of_the_chains_that_go_next(pool: Pool) -> None:
    pool.store("xyz")
    pool.store("abc")
    names = [ref.hash[:1].decode() for ref in pool.refs(pool.index.next_dirty(SLOT, 4))]
    assert names == ["x", "y", "z", "a"]
    assert pool.index.next_dirty(SLOT, 0) == []
    names = [ref.hash[:1].decode() for ref in pool.refs(pool.index.next_dirty(SLOT, 99))]
    assert names == ["b", "c"]


def test_chain_is_named_from_its_root_in_the_order_asked(pool: Pool) -> None:
    pool.store("ab", keys=[KEY, OTHER_KEY])
    pool.store("c", parent="b")
    chain = pool.refs(pool.index.chain_of(LAYOUT, hash_of("c"), [OTHER_KEY[:2], KEY[:2]]))
    assert [(ref.hash[:1], ref.group) for ref in chain] == [(b"a", 1), (b"a", 0), (b"b", 1), (b"b", 0), (b"c", 0)]
    assert pool.index.chain_of(LAYOUT, hash_of("x"), [KEY[:2]]) == []


def test_pages_say_what_they_hang_on_and_what_follows_them(pool: Pool) -> None:
    a, a_other, b, _ = pool.store("ab", keys=[KEY, OTHER_KEY])
    (x,) = pool.store("x")
    assert (pool.index.parent_page(b), pool.index.parent_page(a)) == (a, None)
    assert pool.index.stretches([a, a_other, b, x, a, b, a]) == [[a, a_other, b], [x], [a, b], [a]]
    assert pool.index.stretches([a, a]) == [[a], [a]]
    assert pool.index.stretches([]) == []


def test_places_of_many_pages_are_told_at_once(pool: Pool) -> None:
    a, b, c = pool.store("abc")
    pool.write([a], 1)
    pool.write([b], 2)
    assert pool.index.places_of([b, c, a]) == [pool.index.place_of(b), None, pool.index.place_of(a)]
    assert pool.index.in_segment(1, [b, a, c, 1 << 20]) == [a]
    assert pool.index.in_segment(3, [a, b]) == []


def test_segment_knows_its_live_pages(pool: Pool) -> None:
    pages = pool.store("abc", segment=7)
    live, live_bytes, worth = pool.index.segment_live(7)
    assert (live, live_bytes) == (3, 3 * SLOT)
    assert worth > 0
    assert pool.index.segment_pages(7) == pages
    assert pool.index.segment_live(8) == (0, 0, 0.0)
    assert pool.index.segment_pages(8) == []


def test_segment_is_dropped_in_steps(pool: Pool) -> None:
    below(pool, "abcdef", segment=7)
    pool.store("x", segment=7, at=1 << 20)
    assert pool.index.drop_segment(7, 4) == 3
    pool.index.check()
    assert pool.index.drop_segment(7, 4) == 0
    assert (pool.found("abcdef"), pool.found("x")) == ("", "x")
    assert pool.index.drop_segment(7, 4) == 0
    pool.index.check()


def test_moved_page_lies_at_its_new_place(pool: Pool) -> None:
    a, b = pool.store("ab", segment=1)
    assert pool.index.moved(a, 1, 0, 9, 4096)
    assert pool.index.place_of(a) == (9, 4096, SLOT)
    assert not pool.index.moved(a, 1, 0, 9, 8192)
    assert not pool.index.moved(999, 1, 0, 9, 8192)
    assert pool.index.segment_pages(1) == [b]
    assert pool.index.segment_pages(9) == [a]
    assert pool.index.nvme_bytes == 2 * SLOT
    pool.index.check()


def test_segment_that_pages_come_to_and_leave_lists_each_once(pool: Pool) -> None:
    pages = pool.store("abcd", segment=1)
    for turn in range(200):
        page = pages[turn % 4]
        segment, offset, _ = pool.index.place_of(page) or (0, 0, 0)
        assert pool.index.moved(page, segment, offset, 1 + (turn // 4) % 2, offset)
    pool.index.check()
    assert sorted(pool.index.segment_pages(1) + pool.index.segment_pages(2)) == sorted(pages)


def test_runs_of_a_chain_are_counted(pool: Pool) -> None:
    pool.store("ab", segment=1)
    pool.store("cd", parent="b", segment=1, at=4 * SLOT)
    pool.store("e", parent="d", segment=2)
    assert pool.index.runs(LAYOUT, hash_of("e"), 0) == (3, 5 * SLOT)
    assert pool.index.runs(LAYOUT, hash_of("e"), 2 * SLOT) == (2, 5 * SLOT)
    assert pool.index.runs(LAYOUT, hash_of("b")) == (1, 2 * SLOT)
    assert pool.index.runs(LAYOUT, hash_of("x")) == (0, 0)


def test_recently_used_pages_are_worth_more(pool: Pool) -> None:
    a, b = pool.store("ab")
    (x,) = pool.store("x")
    pool.index.touch(LAYOUT, [hash_of("a")], 5000.0)
    worth = pool.index.worth([a, b, x])
    assert worth[0] > worth[1] == worth[2]
