"""Holds, the recent hit ratio, the books of chunk files, locks."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtier_agent.store.arena_format import PAGE, decide_geometry
from kvtier_agent.store.chunks import Chunk, Chunks
from kvtier_agent.store.errors import LockHeld
from kvtier_agent.store.holds import HOLD_S, Holds
from kvtier_agent.store.locks import FileLock
from kvtier_agent.store.recovery import first_number
from kvtier_agent.store.stats import Window
from kvtier_index import Index

LAYOUT, KEY = b"L" * 32, (0, 0, 0)
CUT = decide_geometry(PAGE, 1 << 20, PAGE)


class Held:
    """One chain, held twice by pod a and once by pod b."""

    def __init__(self) -> None:
        self.index = Index("lru")
        self.index.add_chunk(1, PAGE, 8, PAGE * 2, PAGE, 256, b"")
        self.hashes = [name * 32 for name in (b"a", b"b", b"c")]
        pages = [(hash_, 0, 0, 0, 100) for hash_ in self.hashes]
        taken, stop, busy = self.index.reserve(LAYOUT, None, pages, 0, 3, 0.0, 8)
        assert (len(taken), stop, busy) == (3, 3, False)
        assert self.index.commit([page for _, page in taken], bytes(16 * 3)) == 3
        self.holds = Holds()
        self.ids = [self.take("a", 0.0), self.take("a", 5.0), self.take("b", 10.0)]

    def take(self, pod: str, now: float) -> int:
        return self.holds.take(pod, self.index.hold(LAYOUT, self.hashes, [KEY], now), now)

    def is_pinned(self) -> bool:
        ((_, _, _, _, idle, _),) = self.index.chunks()
        return not idle


def test_hold_is_released_by_its_own_pod_once() -> None:
    held = Held()
    held.holds.release("b", held.ids[0])
    assert len(held.holds) == 3
    held.holds.release("a", held.ids[0])
    held.holds.release("a", held.ids[0])
    assert len(held.holds) == 2
    assert held.is_pinned()


def test_pages_are_pinned_until_the_last_hold_on_them_goes() -> None:
    held = Held()
    held.holds.release_pod("a")
    assert (held.is_pinned(), len(held.holds)) == (True, 1)
    held.holds.release_pod("a")
    held.holds.release_pod("b")
    assert (held.is_pinned(), len(held.holds)) == (False, 0)


def test_holds_lapse_in_the_order_they_were_taken() -> None:
    held = Held()
    held.holds.expire(HOLD_S - 0.1)
    assert len(held.holds) == 3
    held.holds.expire(HOLD_S + 5.0)
    assert len(held.holds) == 1
    held.holds.expire(HOLD_S + 10.0)
    assert (held.is_pinned(), len(held.holds)) == (False, 0)


def test_hold_that_was_extended_keeps_what_it_got_until_it_ends() -> None:
    held = Held()
    extra = held.index.hold(LAYOUT, held.hashes[:1], [KEY], 0.0)
    assert not held.holds.extend("b", held.ids[0], extra), "another pod's"
    assert held.holds.extend("a", held.ids[0], extra)
    held.holds.release("a", held.ids[1])
    held.holds.release("b", held.ids[2])
    assert held.is_pinned()
    held.holds.release("a", held.ids[0])
    assert not held.is_pinned()


def test_hit_window_forgets_after_ten_minutes() -> None:
    now = [0.0]
    window = Window(lambda: now[0])
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


def test_chunk_files_count_from_before_they_are_made_until_they_are_gone() -> None:
    books = Chunks(7)
    chunk = books.reserve("a", CUT)
    assert (chunk.id, books.pool_bytes("a"), books.total_bytes, list(books.of_pool("a"))) == (
        7, CUT.file_bytes, CUT.file_bytes, [],
    )  # fmt: skip
    books.add(chunk)
    assert list(books.of_pool("a")) == [chunk]
    books.retired.add(chunk.id)
    books.close(chunk)
    assert (books.total_bytes, books.files, books.retired) == (CUT.file_bytes, {}, {chunk.id})
    books.discard(chunk)
    assert (books.pool_bytes("a"), books.total_bytes, books.retired) == (0, 0, set())


def test_found_chunk_file_counts_before_its_cut_is_known() -> None:
    books = Chunks(7)
    found = books.found("a", 3, CUT.file_bytes)
    assert (books.pool_bytes("a"), books.files) == (CUT.file_bytes, {})
    books.add(Chunk(found.id, "a", CUT))
    books.discard(books.files[3])
    assert books.total_bytes == 0


def test_number_of_a_new_file_is_above_all_that_exist_and_above_the_clock() -> None:
    assert first_number([1 << 62]) == (1 << 62) + 1
    assert first_number([]) > 1_700_000_000_000_000


def test_lock_that_stays_taken_is_an_error_that_says_how_to_find_the_holder(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "a.lock"), FileLock(tmp_path / "a.lock")
    first.acquire(0)
    with pytest.raises(LockHeld, match=r"fuser -v .*a\.lock"):
        second.acquire(0.1)
    first.release()
    second.acquire(0)
    second.release()
