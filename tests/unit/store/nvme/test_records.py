"""Durable records: their log, and what they take away."""

from __future__ import annotations

import numpy as np
import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.nvme import records, segments
from kvtier_agent.store.nvme.records import (
    Deleted,
    Expired,
    Filter,
    Log,
    Purged,
    Record,
    compact,
    deleted_records,
    pools_taken_from,
)

from tests.unit.store.nvme.bench import LAYOUT, POOL, SEGMENT, hash_of, ref_of

AREA = 64 << 10


def _area(parts: list[bytes], epoch: int = 1, half: int = 0) -> bytearray:
    area = bytearray(AREA)
    data = records.encode_half_header(epoch) + b"".join(parts)
    start = half * AREA // 2
    area[start : start + len(data)] = data
    return area


def _entries(count: int, serial: int = 100) -> segments.Entries:
    refs = [ref_of(number, 100, number) for number in range(count)]
    entries = np.frombuffer(segments.make_entries(SEGMENT, refs, PAGE, serial), segments.ENTRY_TYPE).copy()
    entries["serial"] = np.arange(serial, serial + count)
    return entries


def test_log_of_a_blank_area_is_empty() -> None:
    log = Log(bytes(AREA))
    assert (log.epoch, log.records, log.end) == (0, [], PAGE)


def test_log_reads_up_to_the_first_damaged_record() -> None:
    parts = [records.encode_record(Purged(POOL, number), number) for number in (1, 2, 3)]
    area = _area(parts)
    area[3 * PAGE + 40] ^= 1
    log = Log(area)
    assert log.records == [Purged(POOL, 1), Purged(POOL, 2)]
    assert (log.end, log.counter) == (3 * PAGE, 2)


def test_log_does_not_read_an_older_record_behind_the_last() -> None:
    parts = [records.encode_record(Purged(POOL, number), counter) for number, counter in ((1, 7), (2, 3))]
    assert Log(_area(parts)).records == [Purged(POOL, 1)]


def test_half_with_the_higher_epoch_is_the_log() -> None:
    area = _area([records.encode_record(Purged(POOL, 1), 1)], epoch=4)
    area[AREA // 2 :] = _area([records.encode_record(Purged(POOL, 2), 2)], epoch=5, half=1)[AREA // 2 :]
    log = Log(area)
    assert (log.half, log.epoch, log.records) == (1, 5, [Purged(POOL, 2)])


def test_expiry_takes_what_was_stored_before() -> None:
    made = Filter(POOL, [Expired(POOL, 1_700_000_002, 101)])
    assert made.keep(_entries(4)).tolist() == [False, False, True, True]


def test_ttl_at_recovery_takes_what_is_too_old() -> None:
    assert Filter(POOL, [], 1_700_000_003).keep(_entries(4)).tolist() == [False, False, False, True]


def test_purge_takes_all_up_to_its_cutoff() -> None:
    assert Filter(POOL, [Purged(POOL, 101)]).keep(_entries(4)).tolist() == [False, False, True, True]


def test_pools_of_which_records_take_more_than_is_known() -> None:
    known: list[Record] = [Purged("a", 5), Expired("b", 100, 7), *deleted_records("c", LAYOUT, [hash_of(1)], 9)]
    assert pools_taken_from(known, known) == set()
    assert pools_taken_from([*deleted_records("c", LAYOUT, [hash_of(1)], 8), Purged("a", 4)], known) == set()
    more: list[Record] = [
        Purged("a", 6),
        Expired("b", 200, 7),
        *deleted_records("c", LAYOUT, [hash_of(2)], 9),
        *deleted_records("d", b"M" * 32, [hash_of(1)], 1),
    ]
    assert pools_taken_from(more, known) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("oldest", [{}, {POOL: 103}], ids=["nothing left", "only newer left"])
def test_records_that_nothing_falls_under_are_dropped(oldest: dict[str, int]) -> None:
    found: list[Record] = [Purged(POOL, 102), Expired(POOL, 5, 102), *deleted_records(POOL, LAYOUT, [hash_of(1)], 102)]
    assert compact(found, oldest) == []


def test_merged_records_take_what_the_single_ones_took() -> None:
    single: list[Record] = [Purged(POOL, 100), Expired(POOL, 1_700_000_001, 101), Expired(POOL, 1_700_000_002, 102)]
    for number, cutoff in ((3, 103), (4, 60), (4, 104), (5, 50)):
        single += deleted_records(POOL, LAYOUT, [hash_of(number)], cutoff)
    merged = compact(single, {POOL: 100})
    entries = _entries(8)
    assert len(merged) == 3
    assert Filter(POOL, merged).keep(entries).tolist() == Filter(POOL, single).keep(entries).tolist()
    assert Filter(POOL, merged).keep(entries).sum() == 6
    (deleted,) = (it for it in merged if isinstance(it, Deleted))
    assert deleted.cutoff_of() == {records.block_print(hash_of(3)): 103, records.block_print(hash_of(4)): 104}
