"""Holds, the recent hit ratio, and the linking of what recovery found; where puts hang."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import pytest
from kvtier_agent.store.arena import Slot
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.errors import LockHeld
from kvtier_agent.store.holds import HOLD_S, Holds
from kvtier_agent.store.index import Index, PageKey
from kvtier_agent.store.locks import FileLock
from kvtier_agent.store.nvme import Location, Segment
from kvtier_agent.store.put_plan import WantedPage, keys_by_first_parent
from kvtier_agent.store.recovery import Found, link
from kvtier_agent.store.stats import HitWindow

from tests.unit.store.trees import KEY, LAYOUT, OTHER_KEY, Books, hash_of


class Held:
    """One chain, held twice by pod a and once by pod b."""

    def __init__(self) -> None:
        self.books = Books()
        self.books.chunk(8)
        self.pages = self.books.store("abc")
        self.holds = Holds(self.books.index)
        self.ids = [self.take("a", 0.0), self.take("a", 5.0), self.take("b", 10.0)]

    def take(self, pod: str, now: float) -> int:
        for page in self.pages:
            self.books.index.pin(page)
        return self.holds.take(pod, self.pages, now)

    def pins(self) -> int:
        (count,) = {page.pins for page in self.pages}
        return count


def test_hold_is_released_by_its_own_pod_once() -> None:
    held = Held()
    held.holds.release("b", held.ids[0])
    assert held.pins() == 3
    held.holds.release("a", held.ids[0])
    held.holds.release("a", held.ids[0])
    assert held.pins() == 2


def test_holds_of_a_pod_go_together_with_it() -> None:
    held = Held()
    held.holds.release_pod("a")
    assert (held.pins(), len(held.holds)) == (1, 1)
    held.holds.release_pod("a")
    assert held.pins() == 1


def test_holds_lapse_in_the_order_they_were_taken() -> None:
    held = Held()
    held.holds.expire(HOLD_S - 0.1)
    assert held.pins() == 3
    held.holds.expire(HOLD_S + 5.0)
    assert held.pins() == 1
    held.holds.expire(HOLD_S + 10.0)
    assert held.pins() == 0
    assert held.books.index.evictable(PAGE) is held.pages[-1]


def test_hit_window_forgets_after_ten_minutes() -> None:
    now = [0.0]
    window = HitWindow(lambda: now[0])
    window.count(10, 5)
    now[0] = 9.0
    window.count(10, 10)
    now[0] = 300.0
    window.count(100, 1)
    assert window.totals() == (120, 16)
    now[0] = 599.0
    assert window.totals() == (120, 16)
    now[0] = 600.0
    assert window.totals() == (100, 1)
    now[0] = 10_000.0
    assert window.totals() == (0, 0)


class Recovered:
    """Pages as recovery finds them, and the index that they are linked into."""

    def __init__(self) -> None:
        self.books = Books()
        self.chunk = self.books.chunk(64)
        self.index: Index = self.books.index
        self._slots = itertools.count()

    def in_slot(
        self, name: str, parent: str = "", *, key: PageKey = KEY, last_use_ms: int = 0, size: int = PAGE
    ) -> Found:
        slot = Slot(self.chunk, next(self._slots))
        return Found(LAYOUT, hash_of(name), hash_of(parent) if parent else b"", key, size, last_use_ms, slot=slot)

    def on_nvme(self, name: str, parent: str = "", *, segment: Segment | None = None) -> Found:
        place = Location(segment or self.books.segment(), PAGE, b"c" * 16)
        return Found(LAYOUT, hash_of(name), hash_of(parent) if parent else b"", KEY, PAGE, 0, nvme=place)

    def link(self, *found: Found) -> int:
        return link(self.index, found, self.books.arena.claim)


def chain_of_slots(made: Recovered, names: str) -> list[Found]:
    return [made.in_slot(name, parent) for parent, name in zip(["", *names], names, strict=False)]


@pytest.mark.parametrize("seed", range(5))
def test_pages_found_in_any_order_are_linked_whole(seed: int) -> None:
    made = Recovered()
    found = chain_of_slots(made, "abcdefgh")
    random.Random(seed).shuffle(found)
    assert made.link(*found) == 0
    assert made.books.found("abcdefgh") == "abcdefgh"
    assert len(made.chunk.pages) == 8
    assert len(made.chunk.free) == 56


def test_pages_below_a_missing_one_are_dropped_and_their_slots_free() -> None:
    made = Recovered()
    found = chain_of_slots(made, "abcde")
    assert made.link(*found[:2], *found[3:]) == 2
    assert made.books.found("abcde") == "ab"
    assert len(made.chunk.free) == 62


def test_chain_is_linked_across_both_tiers() -> None:
    made = Recovered()
    assert made.link(made.in_slot("c", "b"), made.on_nvme("b", "a"), made.on_nvme("a"), made.in_slot("a")) == 0
    assert made.books.found("abc") == "abc"
    assert (made.index.dram_pages, made.index.nvme_pages) == (2, 2)


def test_second_slot_of_a_page_stays_free() -> None:
    made = Recovered()
    assert made.link(made.in_slot("a"), made.in_slot("a")) == 1
    assert len(made.chunk.free) == 63


def test_copy_in_the_newer_segment_counts() -> None:
    made = Recovered()
    old, new = made.books.segment(), made.books.segment()
    made.link(made.on_nvme("a", segment=new), made.on_nvme("a", segment=old))
    assert (len(new.pages), len(old.pages)) == (1, 0)


def test_page_of_another_size_than_its_copy_is_dropped() -> None:
    made = Recovered()
    assert made.link(made.in_slot("a"), made.in_slot("a", size=PAGE - 1)) == 1


def test_page_without_its_parents_page_is_dropped() -> None:
    made = Recovered()
    assert made.link(made.in_slot("a"), made.in_slot("b", "a", key=OTHER_KEY)) == 1


def test_hashes_that_form_a_ring_are_dropped() -> None:
    made = Recovered()
    assert made.link(made.in_slot("a", "b"), made.in_slot("b", "a")) == 2
    assert made.index.blocks == 0


def test_recovered_chains_leave_dram_coldest_leaf_first() -> None:
    made = Recovered()
    made.link(
        made.in_slot("a", last_use_ms=1),
        made.in_slot("b", "a", last_use_ms=9),
        made.in_slot("x", last_use_ms=5),
        made.in_slot("y", "x", last_use_ms=2),
    )
    order = ""
    while (page := made.index.evictable(PAGE)) is not None:
        order += page.node.hash[:1].decode()
        made.index.drop_slot(page)
    assert order == "yxba"


def test_lock_that_stays_taken_is_an_error_that_says_how_to_find_the_holder(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "a.lock"), FileLock(tmp_path / "a.lock")
    first.acquire(0)
    with pytest.raises(LockHeld, match=r"fuser -v .*a\.lock"):
        second.acquire(0.1)
    first.release()
    second.acquire(0)
    second.release()


def test_keys_of_one_wide_block_are_grouped_in_one_pass() -> None:
    fresh = [WantedPage(b"block", b"parent", PageKey(key), 1, 0) for key in range(30_000)]
    began = time.process_time()
    grouped = keys_by_first_parent(fresh)
    assert time.process_time() - began < 0.5, "a step for every pair of pages takes half a minute"
    assert grouped == {b"parent": [page.key for page in fresh]}


def test_first_parent_of_a_key_is_that_of_its_first_new_page() -> None:
    first, second = PageKey(0), PageKey(1)
    fresh = [
        WantedPage(b"a", None, first, 1, 0),
        WantedPage(b"b", b"a", first, 1, 0),
        WantedPage(b"b", b"a", second, 1, 0),
    ]
    assert keys_by_first_parent(fresh) == {b"a": [second]}
