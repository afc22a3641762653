"""The prefix tree: lookup, order of eviction, cuts and pins; at the end against a plain model, at random."""

from __future__ import annotations

import random
import time

import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.core import chain_pages
from kvtier_agent.store.index import AbsentParent, Page, PageKey

from tests.unit.store.trees import KEY, LAYOUT, OTHER_KEY, Books, hash_of


@pytest.fixture
def books() -> Books:
    made = Books()
    made.chunk(32)
    return made


def test_use_of_a_long_chain_under_many_keys_steps_by_the_pages_there_are() -> None:
    """One put may name a root with thousands of pages and a chain of thousands of blocks with one each."""
    many = 4000
    books = Books()
    books.chunk(2 * many)
    keys = [PageKey(key) for key in range(many)]
    root = hash_of("root")
    for key in keys:
        page = books.index.add(LAYOUT, root, None, key, PAGE)
        books.index.set_slot(page, books.slot())
    above = root
    for number in range(many):
        page = books.index.add(LAYOUT, hash_of(f"block {number}"), above, KEY, PAGE)
        books.index.set_slot(page, books.slot())
        above = page.node.hash
    began = time.process_time()
    books.index.touch(page.node, keys)
    chain = chain_pages(page.node, keys)
    took_s = time.process_time() - began
    assert len(chain) == 2 * many
    assert took_s < 0.3, "16 million steps take seconds, in which nobody is answered"


def test_lookup_of_a_stored_chain_finds_its_leading_blocks(books: Books) -> None:
    books.store("abc")
    assert books.found("abcde") == "abc"
    assert books.found("ab") == "ab"
    assert books.found("xbc") == ""
    assert books.found("") == ""


def test_lookup_from_the_middle_of_a_chain_finds_the_rest(books: Books) -> None:
    books.store("abcd")
    assert books.found("bcd") == "bcd"


def test_lookup_of_hashes_that_are_no_chain_stops_at_the_break(books: Books) -> None:
    books.store("abcd")
    books.store("x")
    assert books.found("abxd") == "ab"
    assert books.found("axcd") == "a"
    assert books.found("adbc") == "a"
    assert books.found("aab") == "a"


def test_lookup_in_another_layout_finds_nothing(books: Books) -> None:
    books.store("ab")
    assert books.index.find(b"M" * 32, [hash_of("a")], (KEY,)) == []


def test_block_without_one_of_its_pages_is_not_whole(books: Books) -> None:
    books.store("abc")
    books.store("ab", key=OTHER_KEY)
    assert books.found("abc", (KEY, OTHER_KEY)) == "ab"
    assert books.found("abc", (KEY,)) == "abc"


def test_page_whose_parent_lacks_it_is_refused(books: Books) -> None:
    books.store("ab")
    with pytest.raises(AbsentParent):
        books.index.add(LAYOUT, hash_of("c"), hash_of("x"), KEY, PAGE)
    with pytest.raises(AbsentParent):
        books.index.add(LAYOUT, hash_of("c"), hash_of("b"), OTHER_KEY, PAGE)
    with pytest.raises(AbsentParent):
        books.index.add(LAYOUT, hash_of("b"), None, KEY, PAGE)


def test_leaf_of_the_coldest_chain_leaves_dram_first(books: Books) -> None:
    abc, xy = books.store("abc"), books.store("xy")
    books.index.touch(xy[-1].node, (KEY,))
    books.index.touch(abc[-1].node, (KEY,))
    order = []
    while (page := books.index.evictable(PAGE)) is not None:
        order.append(page.node.hash[:1].decode())
        books.index.drop_slot(page)
    assert "".join(order) == "yxcba"


def test_page_that_lies_only_in_dram_stays_while_its_child_does(books: Books) -> None:
    (_, b) = books.store("ab")
    books.index.pin(b)
    assert books.index.evictable(PAGE) is None
    books.index.unpin(b)
    assert books.index.evictable(PAGE) is b


def test_page_with_a_copy_on_nvme_may_leave_dram_before_its_child(books: Books) -> None:
    a, b = books.store("ab", segment=books.segment())
    books.index.pin(b)
    assert books.index.evictable(PAGE) is a
    books.index.drop_slot(a)
    assert books.found("ab") == "ab"


def test_lost_page_cuts_all_that_hangs_below_it(books: Books) -> None:
    pages = books.store("abcd", segment=books.segment())
    books.store("xy", parent=hash_of("b"))
    books.index.drop_slot(pages[1])
    books.index.drop_nvme(pages[1])
    assert books.found("abcd") == "a"
    assert books.index.blocks == 1
    assert books.index.dram_pages == 1
    assert books.index.nvme_pages == 1
    assert len(books.arena.chunks[1].free) == 31


def test_cut_page_keeps_its_slot_until_the_last_pin_goes(books: Books) -> None:
    (page,) = books.store("a")
    books.index.pin(page)
    books.index.pin(page)
    books.index.cut(page)
    assert books.found("a") == ""
    books.index.unpin(page)
    assert len(books.arena.chunks[1].free) == 31
    books.index.unpin(page)
    assert len(books.arena.chunks[1].free) == 32


def test_block_can_be_stored_again_while_a_cut_copy_is_held(books: Books) -> None:
    (old,) = books.store("a")
    books.index.pin(old)
    books.index.cut(old)
    (new,) = books.store("a")
    assert new is not old
    books.index.unpin(old)
    assert books.found("a") == "a"


class Model:
    """What the index should hold: by block and page, whether it is in DRAM and on nvme."""

    def __init__(self, books: Books, dice: random.Random) -> None:
        self.books, self.dice = books, dice
        self.parents: dict[bytes, bytes | None] = {}
        self.pages: dict[tuple[bytes, int], Page] = {}
        self.pins: list[Page] = []

    def present(self, hash_: bytes, key: int) -> bool:
        page = self.pages.get((hash_, key))
        return page is not None and page.attached

    def step(self) -> None:
        self.dice.choice([self.add, self.add, self.add, self.evict, self.lose, self.pin, self.unpin, self.touch])()

    def add(self) -> None:
        known = [None, *self.parents]
        hash_ = self.dice.randbytes(32) if self.dice.random() < 0.8 or not self.parents else self.any_hash()
        parent = self.parents.setdefault(hash_, self.dice.choice(known))
        key = self.dice.choice([KEY, OTHER_KEY])
        allowed = parent is None or self.present(parent, key)
        if self.present(hash_, key):
            return
        slot = self.books.arena.take("pool-1", PAGE)
        if slot is None:
            self.evict()
            return
        try:
            page = self.books.index.add(LAYOUT, hash_, parent, key, PAGE)
        except AbsentParent:
            assert not allowed
            self.books.arena.release(slot)
            return
        assert allowed
        self.books.index.set_slot(page, slot)
        self.pages[hash_, key] = page
        self.books.index.touch(page.node, (key,))

    def any_hash(self) -> bytes:
        return self.dice.choice(list(self.parents))

    def evict(self) -> None:
        page = self.books.index.evictable(PAGE)
        if page is not None:
            assert page.pins == 0
            self.books.index.drop_slot(page)

    def lose(self) -> None:
        attached = [page for page in self.pages.values() if page.attached]
        if attached and self.dice.random() < 0.2:
            self.books.index.cut(self.dice.choice(attached))

    def pin(self) -> None:
        attached = [page for page in self.pages.values() if page.attached]
        if attached and len(self.pins) < 8:
            page = self.dice.choice(attached)
            self.books.index.pin(page)
            self.pins.append(page)

    def unpin(self) -> None:
        if self.pins:
            self.books.index.unpin(self.pins.pop(self.dice.randrange(len(self.pins))))

    def touch(self) -> None:
        attached = [page for page in self.pages.values() if page.attached]
        if attached:
            self.books.index.touch(self.dice.choice(attached).node, (KEY, OTHER_KEY))

    def check(self) -> None:
        index, chunk = self.books.index, self.books.arena.chunks[1]
        attached = {place: page for place, page in self.pages.items() if page.attached}
        for hash_, key in attached:
            parent = self.parents[hash_]
            assert parent is None or (parent, key) in attached, "a page outlived its parent's"
        assert index.blocks == len({hash_ for hash_, _ in attached})
        in_slots = {page for page in [*self.pages.values(), *self.pins] if page.slot is not None}
        assert index.dram_pages == len(in_slots) == len(chunk.pages) == 24 - len(chunk.free)
        assert all(page.slot is not None for page in self.pins)
        assert {page.slot.number for page in in_slots if page.slot} == set(chunk.pages)
        for key in (KEY, OTHER_KEY):
            hash_ = self.any_hash()
            chain = [hash_]
            while (parent := self.parents[chain[-1]]) is not None:
                chain.append(parent)
            chain.reverse()
            expected = next((n for n, it in enumerate(chain) if (it, key) not in attached), len(chain))
            assert len(index.find(LAYOUT, chain, (key,))) == expected


@pytest.mark.parametrize("seed", range(20))
def test_index_under_random_use_agrees_with_a_plain_model(seed: int) -> None:
    books = Books()
    books.chunk(24)
    model = Model(books, random.Random(seed))
    model.add()
    for _ in range(600):
        model.step()
        model.check()
