"""Recovery: what is staged in any order becomes the same tree again."""

from __future__ import annotations

import random
import struct

import pytest
from kvtier_agent.store.refs import encode_ref
from kvtier_index import ENTRY_BYTES, Index

from tests.unit.index.pool import (
    HEADER_AT,
    HEADER_BYTES,
    KEY,
    LAYOUT,
    OTHER_KEY,
    PAYLOAD_AT,
    SLOT,
    Pool,
    digest_of,
    hash_of,
)

ENTRY = struct.Struct("<64s64s16s16sQIIIIIIHHBB2x")
TAIL = (7, 0, 2)


def entry(
    name: str,
    parent: str | None,
    offset: int,
    key: tuple[int, int, int] = KEY,
    size: int = SLOT,
    stored_at: int = 1000,
    layout: int = 0,
    digest: bytes | None = None,
    serial: int = 0,
) -> bytes:
    above = hash_of(parent) if parent else b""
    hash_ = hash_of(name)
    return ENTRY.pack(
        hash_, above, digest or digest_of(hash_, key), b"c" * 16, serial, offset >> 12, size, stored_at, key[0], key[2],
        3, layout, key[1], len(hash_), len(above),
    )  # fmt: skip


def link(index: Index, step: int = 3) -> None:
    for _ in range(1_000_000):
        if index.link(step):
            return
    raise AssertionError("linking does not end")


def successor(pool: Pool, last_uses: dict[str, int] | None = None, dice: random.Random | None = None) -> Pool:
    """A pool that finds what the chunk 1 of `pool` holds."""
    new = Pool(0)
    pages = [
        page
        for name in map(chr, range(33, 127))
        for key in (KEY, OTHER_KEY, TAIL)
        if (page := pool.page(name, key)) is not None
    ]
    refs = [ref for ref in pool.refs(pages) if ref.chunk]
    generations = [0] * 32
    for ref in refs:
        generations[ref.slot] = ref.generation
    new.index.add_chunk(1, SLOT, 32, PAYLOAD_AT, HEADER_AT, HEADER_BYTES, struct.pack("<32Q", *generations))
    if dice:
        dice.shuffle(refs)
    uses = last_uses or {}
    records = [encode_ref(ref._replace(segment=uses.get(ref.hash[:1].decode(), 0), offset=0)) for ref in refs]
    new.index.stage_slots(1, b"".join(records))
    return new


@pytest.mark.parametrize("seed", range(5))
def test_slots_become_the_same_tree_in_whatever_order_they_are_found(seed: int) -> None:
    pool = Pool(32)
    pool.store("abcd", keys=[KEY, OTHER_KEY])
    pool.store("xyz", parent="b")
    pool.store("mno", keys=[KEY, TAIL])
    new = successor(pool, dice=random.Random(seed))
    link(new.index)
    new.index.check()
    assert new.index.orphans == 0
    for figure in ("blocks", "dram_pages", "dram_bytes", "slots_in_use"):
        assert getattr(new.index, figure) == getattr(pool.index, figure), figure
    assert new.found("abcd", [KEY, OTHER_KEY]) == "abcd"
    assert new.found("abxyz") == "abxyz"
    assert new.found("mno", [KEY, TAIL]) == "mno"
    for name in "abcdxyz":
        before, after = pool.refs([pool.page(name) or 0]), new.refs([new.page(name) or 0])
        assert before == after


def test_recovered_pages_leave_dram_by_their_last_use_leaves_first() -> None:
    pool = Pool(32)
    pool.store("abc")
    pool.store("xy")
    new = successor(pool, {"a": 1, "b": 1, "c": 5000, "x": 3000, "y": 2000})
    link(new.index)
    assert "".join(new.evict(1)[0] for _ in range(5)) == "yxcba"
    new.index.check()


def test_orphans_are_dropped_and_their_slots_are_free() -> None:
    pool = Pool(32)
    pages = pool.store("abc")
    new = Pool(0)
    new.add_chunk(1, 32, generations=bytes(8 * 32))
    records = [encode_ref(ref) for ref in pool.refs(pages)]
    new.index.stage_slots(1, records[0] + records[2])
    link(new.index)
    new.index.check()
    assert (new.index.orphans, new.index.blocks, new.index.slots_in_use) == (1, 1, 1)
    assert new.index.free_slots(SLOT) == 31
    assert len(new.store("bcdefgh", parent="a")) == 7
    new.index.check()


def test_page_lies_where_its_newest_copy_on_nvme_is() -> None:
    new = Pool(4)
    new.index.stage_entries(7, entry("b", "a", 4096) + entry("a", None, 8192), LAYOUT)
    new.index.stage_entries(9, entry("a", None, 0), LAYOUT)
    new.index.stage_entries(8, entry("a", None, 4096) + entry("c", "b", 0), LAYOUT)
    link(new.index)
    new.index.check()
    assert new.find("abc") == (3, 0)
    places = [new.index.place_of(page) for page in new.index.chain_of(LAYOUT, hash_of("c"), [KEY[:2]])]
    assert places == [(9, 0, SLOT), (7, 4096, SLOT), (8, 0, SLOT)]
    assert (new.index.nvme_pages, new.index.segment_live(7)[0]) == (3, 1)
    assert new.index.expire(1001.0, 9) == [(LAYOUT, hash_of("a"))]


def test_page_that_lies_in_both_tiers_is_one_page() -> None:
    pool = Pool(32)
    pool.store("ab")
    new = successor(pool)
    new.index.stage_entries(7, entry("a", None, 0) + entry("b", "a", 4096), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.dram_pages, new.index.nvme_pages, new.index.blocks) == (2, 2, 2)


@pytest.mark.parametrize("nvme_first", [True, False])
def test_copy_on_nvme_of_another_payload_than_in_dram_is_not_believed(nvme_first: bool) -> None:
    pool = Pool(32)
    pages = pool.store("a")
    other = entry("a", None, 0, digest=b"other payload..!")
    new = Pool(0)
    new.add_chunk(1, 32, generations=bytes(8 * 32))
    if nvme_first:
        new.index.stage_entries(7, other, LAYOUT)
    new.index.stage_slots(1, encode_ref(pool.refs(pages)[0]))
    if not nvme_first:
        new.index.stage_entries(7, other, LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.dram_pages, new.index.nvme_pages) == (1, 0)
    assert new.refs([new.page("a") or 0])[0].digest == digest_of(hash_of("a"), KEY)


def test_contradictions_are_dropped() -> None:
    new = Pool(4)
    staged = [
        entry("a", None, 0),
        entry("a", "x", 4096),  # another parent
        entry("b", "a", 0, size=100),
        entry("b", "a", 0, size=200),  # another size
        entry("c", "c", 0),  # its own parent
        entry("d", None, 0, size=0),
        entry("e", None, 0, layout=1),  # no such layout
        entry("f", None, 0, key=(0, 0, 2)),  # another kind
    ]
    new.index.stage_entries(7, b"".join(staged), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.orphans, new.index.blocks) == (6, 2)


def test_blocks_that_name_each_other_as_parents_are_dropped() -> None:
    new = Pool(4)
    new.index.stage_entries(7, entry("a", "b", 0) + entry("b", "a", 4096) + entry("x", None, 8192), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.orphans, new.index.blocks) == (2, 1)


def test_trailing_pages_are_recovered_without_their_ancestors() -> None:
    new = Pool(4)
    staged = [entry("d", "c", 0, TAIL, stored_at=4000), entry("c", "b", 4096, TAIL, stored_at=3000)]
    new.index.stage_entries(7, b"".join(staged), LAYOUT)
    link(new.index)
    new.index.check()
    assert new.found("abcd", [TAIL]) == "abcd"
    assert new.index.orphans == 0
    assert new.index.expire(2000.0, 9) == []
    assert [hash_ for _, hash_ in new.index.expire(3500.0, 9)] == [hash_of("b")]


def test_trailing_page_beside_full_ones_goes_with_them() -> None:
    new = Pool(4)
    staged = [entry("a", None, 0), entry("c", "b", 4096), entry("c", "b", 8192, TAIL)]
    new.index.stage_entries(7, b"".join(staged), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.orphans, new.index.blocks) == (2, 1)


def stage_deleted(index: Index, cutoffs: dict[str, int], layout: bytes = LAYOUT) -> None:
    """These blocks were deleted, each as far as it was written up to a serial."""
    prints = b"".join(hash_of(name)[:16] for name in cutoffs)
    index.stage_deleted(layout, prints, struct.pack(f"<{len(cutoffs)}Q", *cutoffs.values()))


def chain(names: str, serial: int) -> bytes:
    """Entries of a chain from its root."""
    above = [None, *names]
    return b"".join(entry(name, above[at], at << 12, serial=serial) for at, name in enumerate(names))


def test_blocks_that_were_deleted_go_with_all_below_them() -> None:
    new = Pool(4)
    stage_deleted(new.index, {"b": 10})
    assert new.index.stage_entries(7, chain("abcd", 10), LAYOUT) == 3
    link(new.index)
    new.index.check()
    assert (new.find("abcd"), new.index.nvme_pages, new.index.orphans) == ((1, 0), 1, 2)


@pytest.mark.parametrize("newer_first", [True, False])
def test_blocks_stored_again_bring_nothing_back_that_was_deleted_below_them(newer_first: bool) -> None:
    new = Pool(4)
    stage_deleted(new.index, {"a": 5})
    stage_deleted(new.index, {"a": 10})
    older, newer = chain("abcd", 10), chain("ab", 11)
    new.index.stage_entries(7, newer if newer_first else older, LAYOUT)
    new.index.stage_entries(8, older if newer_first else newer, LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.find("abcd"), new.index.nvme_pages) == ((2, 0), 2)


def test_deletion_in_another_layout_takes_nothing() -> None:
    new = Pool(4)
    stage_deleted(new.index, {"a": 10}, b"M" * 32)
    assert new.index.stage_entries(7, chain("abcd", 10), LAYOUT) == 4
    link(new.index)
    assert new.find("abcd") == (4, 0)


def test_deleted_copy_on_nvme_leaves_the_page_in_dram() -> None:
    pool = Pool(32)
    pool.store("abc")
    new = Pool(0)
    new.add_chunk(1, 32, generations=bytes(8 * 32))
    stage_deleted(new.index, {"a": 10})
    new.index.stage_entries(7, chain("abcd", 10) + entry("a", None, 1 << 20, serial=11), LAYOUT)
    new.index.stage_slots(1, b"".join(encode_ref(ref) for ref in pool.refs([pool.page(name) or 0 for name in "abc"])))
    link(new.index)
    new.index.check()
    assert (new.find("abcd"), new.index.dram_pages, new.index.nvme_pages) == ((3, 3), 3, 1)


def test_deleted_trailing_pages_do_not_come_back() -> None:
    new = Pool(4)
    stage_deleted(new.index, {"c": 10})
    staged = [entry("d", "c", 0, TAIL, serial=10), entry("c", "b", 4096, TAIL, serial=10)]
    staged += [entry("x", "b", 8192, TAIL, serial=10), entry("e", "d", 12288, TAIL, serial=11)]
    new.index.stage_entries(7, b"".join(staged), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.nvme_pages, new.index.orphans) == (2, 1)


def test_deletion_reaches_trailing_pages_through_blocks_whose_own_pages_are_gone() -> None:
    for gone in ("deleted", "filtered"):
        new = Pool(4)
        stage_deleted(new.index, {"a": 20, "b": 5} if gone == "deleted" else {"a": 20})
        below, between = entry("c", "b", 0, TAIL, serial=8), entry("b", "a", 4096, TAIL, serial=4)
        if gone == "deleted":
            assert new.index.stage_entries(7, below + between, LAYOUT) == 1
        else:
            new.index.stage_entries(7, below, LAYOUT)
            new.index.stage_links(between, LAYOUT)
        link(new.index)
        new.index.check()
        assert (new.found("abc", [TAIL]), new.index.nvme_pages) == ("", 0), gone


def test_links_alone_leave_nothing_behind() -> None:
    new = Pool(4)
    stage_deleted(new.index, {"a": 20})
    new.index.stage_links(chain("abcd", 5) + entry("x", "x", 0), LAYOUT)
    new.index.stage_entries(7, entry("z", None, 0, serial=1), LAYOUT)
    link(new.index)
    new.index.check()
    assert (new.index.blocks, new.index.nvme_pages, new.index.orphans) == (1, 1, 0)


def test_deletions_of_a_wrong_shape_are_refused() -> None:
    for prints, cutoffs in ((b"p" * 15, bytes(8)), (b"p" * 16, bytes(7)), (b"p" * 32, bytes(8))):
        with pytest.raises(ValueError, match="do not go with"):
            Index("lru").stage_deleted(LAYOUT, prints, cutoffs)


def test_nothing_is_staged_once_linking_has_begun() -> None:
    new = Pool(4)
    new.index.stage_entries(7, entry("a", None, 0), LAYOUT)
    assert not new.index.link(1)
    with pytest.raises(ValueError, match="linking has begun"):
        new.index.stage_entries(7, entry("b", "a", 0), LAYOUT)
    with pytest.raises(ValueError, match="linking has begun"):
        stage_deleted(new.index, {"a": 1})
    link(new.index)
    assert new.store("b", parent="a") != []


def test_slot_of_a_wrong_number_or_size_is_not_believed() -> None:
    pool = Pool(32)
    (page,) = pool.store("a")
    ref = pool.refs([page])[0]
    new = Pool(0)
    new.add_chunk(1, 4, generations=bytes(8 * 4))
    for wrong in (ref._replace(slot=4), ref._replace(slot=1 << 31), ref._replace(size=SLOT + 1)):
        new.index.stage_slots(1, encode_ref(wrong))
    new.index.stage_slots(1, encode_ref(ref) * 2)
    link(new.index)
    new.index.check()
    assert (new.index.orphans, new.index.blocks) == (4, 1)


def test_entry_bytes_are_those_of_the_format() -> None:
    assert ENTRY.size == ENTRY_BYTES
