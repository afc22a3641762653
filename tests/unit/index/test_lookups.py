"""What lookups find, with full and with trailing pages."""

from __future__ import annotations

import time

import pytest
from kvtier_client.protocol.messages import MAX_PAGES_OF_BLOCK
from kvtier_index import Refused

from tests.unit.index.pool import KEY, LAYOUT, OTHER_KEY, Pool, hash_of

TAIL = (7, 0, 2)
"""The page of a group of which only the last two blocks are needed."""


@pytest.fixture
def pool() -> Pool:
    return Pool(64)


def test_lookup_of_a_stored_chain_finds_its_leading_blocks(pool: Pool) -> None:
    pool.store("abc")
    assert pool.found("abcde") == "abc"
    assert pool.found("ab") == "ab"
    assert pool.found("xbc") == ""
    assert pool.found("") == ""


def test_lookup_from_the_middle_of_a_chain_finds_the_rest(pool: Pool) -> None:
    pool.store("abcd")
    assert pool.found("bcd") == "bcd"


@pytest.mark.parametrize(("asked", "whole"), [("abxd", "ab"), ("axcd", "a"), ("adbc", "a"), ("aab", "a"), ("xa", "x")])
def test_lookup_of_hashes_that_are_no_chain_stops_at_the_break(pool: Pool, asked: str, whole: str) -> None:
    pool.store("abcd")
    pool.store("x")
    assert pool.found(asked) == whole


def test_lookup_in_another_layout_finds_nothing(pool: Pool) -> None:
    pool.store("ab")
    assert pool.find("ab", layout=b"M" * 32) == (0, 0)


def test_block_without_one_of_its_pages_is_not_whole(pool: Pool) -> None:
    pool.store("abc")
    pool.store("ab", keys=[OTHER_KEY])
    assert pool.found("abc", [KEY, OTHER_KEY]) == "ab"
    assert pool.found("abc", [KEY]) == "abc"


def test_block_with_more_pages_than_are_compared_one_by_one_is_whole(pool: Pool) -> None:
    keys = [(group, 0, 0) for group in range(20)]
    pool.store("ab", keys=keys)
    pool.store("c", parent="b", keys=keys[1:])
    assert pool.found("abc", keys) == "ab"
    assert pool.found("abc", keys[1:]) == "abc"


def test_page_that_is_being_filled_is_not_found(pool: Pool) -> None:
    pool.store("a")
    (page,) = pool.reserve("b", parent="a")
    assert pool.found("ab") == "a"
    pool.commit([page])
    assert pool.found("ab") == "ab"


def test_lookup_says_how_much_of_it_lies_in_dram(pool: Pool) -> None:
    pool.store("abcd", segment=5)
    held = pool.index.hold(LAYOUT, [hash_of("c"), hash_of("d")], [KEY], 2000.0)
    pool.evict(1)
    assert pool.find("abcd") == (4, 1)
    held.release()
    assert pool.index.drop_segment(5, 100) == 0
    assert pool.find("abcd") == (1, 1)


def test_lookup_with_trailing_pages_needs_those_of_the_last_blocks_only(pool: Pool) -> None:
    pool.store("abcde")
    pool.store("bc", parent="a", keys=[TAIL])
    pool.store("e", parent="d", keys=[TAIL])
    assert pool.found("abcde", [KEY, TAIL]) == "abc"
    pool.store("d", parent="c", keys=[TAIL])
    assert pool.found("abcde", [KEY, TAIL]) == "abcde"
    assert pool.found("ab", [KEY, TAIL]) == ""
    assert pool.found("bc", [KEY, TAIL]) == "bc"


def test_lookup_of_trailing_pages_alone_probes_from_the_end(pool: Pool) -> None:
    pool.store("cd", parent="b", keys=[TAIL])
    assert pool.found("abcd", [TAIL]) == "abcd"
    assert pool.found("abcdef", [TAIL]) == "abcd"
    assert pool.found("abc", [TAIL]) == ""


def test_trailing_pages_of_hashes_that_are_no_chain_are_not_found(pool: Pool) -> None:
    pool.store("cd", parent="b", keys=[TAIL])
    pool.store("xy", keys=[TAIL])
    assert pool.found("abcx", [TAIL]) == ""
    assert pool.found("xd", [TAIL]) == "x"


def test_floating_blocks_hang_on_their_parent_once_it_comes(pool: Pool) -> None:
    pool.store("c", parent="b", keys=[TAIL])
    pool.store("b", parent="a", keys=[TAIL])
    pool.store("a", keys=[TAIL])
    pool.index.check()
    assert pool.found("abc", [TAIL]) == "abc"
    pool.index.delete(LAYOUT, hash_of("a"))
    assert pool.index.blocks == 0
    pool.index.check()


def test_floating_block_cannot_become_its_own_ancestor(pool: Pool) -> None:
    pool.store("b", parent="a", keys=[TAIL])
    with pytest.raises(Refused, match="own ancestor"):
        pool.reserve("a", parent="b", keys=[TAIL])
    pool.index.check()


def test_lookup_names_its_fault(pool: Pool) -> None:
    pool.store("a")
    for hashes, keys, at in [
        ([hash_of("a"), b"short"], [KEY], 1),
        ([hash_of("a") + b"long"], [KEY], 0),
        ([hash_of("a")], [], 0),
        ([hash_of("a")], [KEY, KEY], 1),
        ([hash_of("a")], [(0, 0, 4)], 0),
        ([hash_of("a")], [(0, 1 << 16, 0)], 0),
        ([hash_of("a")], [(-1, 0, 0)], 0),
    ]:
        with pytest.raises(Refused) as refused:
            pool.index.find(LAYOUT, hashes, keys)
        assert refused.value.args[:2] == ("malformed", at)
    with pytest.raises(Refused):
        pool.index.find(b"short", [], [KEY])
    for packed in [(0, b""), (0, b"h" * 32), (20, b"h" * 32)]:
        with pytest.raises(ValueError, match="bytes are no hashes of"):
            pool.index.find(LAYOUT, packed, [KEY])


@pytest.mark.parametrize("length", [16, 31, 32, 33, 64])
def test_hashes_of_every_length_are_told_apart(length: int) -> None:
    pool = Pool(16)
    hashes = [bytes([number]).rjust(length, b"h") for number in range(10)]
    pages = [(hash_, *KEY, 4096) for hash_ in hashes]
    taken, stopped, busy = pool.index.reserve(LAYOUT, None, pages, 0, 10, 1.0, 99)
    assert (len(taken), stopped, busy) == (10, 10, False)
    pool.commit([page for _, page in taken])
    pool.index.check()
    assert pool.index.find(LAYOUT, hashes, [KEY]) == (10, 10)
    assert pool.index.find(LAYOUT, [*hashes[:5], b"x" * length], [KEY]) == (5, 5)
    assert pool.index.find(LAYOUT, (length, b"".join(hashes[:7]) + b"x" * length), [KEY]) == (7, 7)
    assert [ref.hash for ref in pool.refs([page for _, page in taken])] == hashes
    assert pool.index.delete(LAYOUT, hashes[9])[0] == hashes[9]


def test_lookup_among_very_many_pages_of_one_block_takes_few_steps() -> None:
    """A put may name a root with very many pages, and a chain of thousands of blocks with one each."""
    many = 4000
    pool = Pool(2 * many)
    keys = [(group, 0, 0) for group in range(MAX_PAGES_OF_BLOCK)]
    pool.store("a", keys=keys)
    names = [f"block {number}" for number in range(many)]
    pages = [(hash_of(name), *KEY, 4096) for name in names]
    taken, _, _ = pool.index.reserve(LAYOUT, hash_of("a"), pages, 0, many, 1.0, 1 << 40)
    pool.commit([page for _, page in taken])
    began = time.process_time()
    hashes = [hash_of(name) for name in ["a", *names]]
    assert pool.index.find(LAYOUT, hashes, keys) == (1, 1)
    assert pool.index.find(LAYOUT, hashes, [KEY]) == (many + 1, many + 1)
    pool.index.touch(LAYOUT, hashes, 2.0)
    assert len(pool.index.chain_of(LAYOUT, hashes[-1], [key[:2] for key in keys])) == many + len(keys)
    assert time.process_time() - began < 0.3, "millions of steps take long, in which nobody is answered"
