"""A device mover's jobs, on a real file and a real chunk."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.nvme import io_mover, jobs
from kvtier_agent.store.nvme.segments import ENTRY_TYPE, SegmentId, run_bytes, run_header_bytes, run_places
from kvtier_agent.store.refs import Ref, encode_ref

from tests.unit.store.nvme.bench import CAPACITY, LAYOUT, POOL, SEGMENT, Bench, hash_of, payload_of, ref_of

SIZE = 20_000


def _written(bench: Bench, numbers: range, offset: int = PAGE, size: int = SIZE) -> list[Ref]:
    """Pages that were written as a run; their refs say where they lie."""
    refs = [bench.fill(number, size, slot) for slot, number in enumerate(numbers)]
    assert bench.write(refs, offset).bad == []
    places = run_places(offset, [size] * len(refs))
    return [ref._replace(offset=place) for ref, place in zip(refs, places, strict=True)]


def _moved_to(refs: list[Ref], first_slot: int) -> list[Ref]:
    return [ref._replace(slot=first_slot + index, generation=5) for index, ref in enumerate(refs)]


def _numbers(parts: list[jobs.Staged]) -> list[int]:
    entries = np.frombuffer(b"".join(part.entries for part in parts), ENTRY_TYPE)
    return [int.from_bytes(bytes(it)[:4], "big") for it in entries["hash"]]


@pytest.fixture
def opened(bench: Bench) -> Bench:
    bench.open()
    bench.init()
    return bench


def test_written_run_reads_back_into_other_slots(opened: Bench) -> None:
    refs = _moved_to(_written(opened, range(8)), 20)
    moved = opened.read(refs, refs[0].offset)
    assert (moved.bad, moved.failed) == ([], [])
    for number, ref in enumerate(refs):
        assert bytes(opened.chunk.payload(ref.slot, SIZE)) == payload_of(number, SIZE)
        assert opened.chunk.is_intact(ref)


def test_one_read_goes_across_runs_and_their_headers(opened: Bench) -> None:
    first = _written(opened, range(4))
    second = _written(opened, range(4, 8), PAGE + run_bytes([SIZE] * 4))
    refs = _moved_to(first + second, 20)
    assert opened.read(refs, refs[0].offset, more=3 * PAGE).bad == []
    assert [bytes(opened.chunk.payload(20 + it, SIZE)) for it in range(8)] == [payload_of(it, SIZE) for it in range(8)]


def test_flipped_payload_is_bad_and_its_slot_stays_uncommitted(opened: Bench) -> None:
    refs = _written(opened, range(4))
    opened.flip(opened.unit_at() + refs[2].offset + 100)
    moved = opened.read(_moved_to(refs, 20), refs[0].offset)
    assert (moved.bad, moved.failed) == ([2], [])
    assert [opened.chunk.scan(20 + it)[1] is not None for it in range(4)] == [True, True, False, True]


def test_read_past_the_device_fails_page_by_page(opened: Bench) -> None:
    refs = _written(opened, range(3))
    refs[2] = refs[2]._replace(offset=CAPACITY * 2)
    moved = opened.read(_moved_to(refs, 20), refs[0].offset)
    assert (moved.bad, moved.failed) == ([], [2])


def test_page_that_changed_in_the_arena_is_not_written(opened: Bench) -> None:
    refs = [opened.fill(number, SIZE, number) for number in range(3)]
    opened.chunk.payload(1, SIZE)[0:1] = b"\xff"
    assert opened.write(refs).bad == [1]
    assert _numbers(opened.stage()) == []


def test_unsealed_segment_is_found_from_its_runs(opened: Bench) -> None:
    _written(opened, range(4))
    _written(opened, range(4, 7), 40 * PAGE)
    opened.reopen()
    parts = opened.stage()
    assert (_numbers(parts), parts[0].sealed, parts[0].lost) == (list(range(7)), False, 0)
    assert parts[0].runs == [(PAGE, PAGE), (40 * PAGE, PAGE)]
    assert parts[0].layouts == LAYOUT


def test_torn_run_loses_what_did_not_arrive(opened: Bench) -> None:
    refs = _written(opened, range(4))
    _written(opened, range(4, 7), 40 * PAGE)
    opened.flip(opened.unit_at() + refs[1].offset, PAGE)
    parts = opened.stage()
    assert (_numbers(parts), parts[0].lost) == ([0, 2, 3, 4, 5, 6], 1)


def test_lost_run_header_loses_that_run_only(opened: Bench) -> None:
    _written(opened, range(4))
    _written(opened, range(4, 7), 40 * PAGE)
    opened.flip(opened.unit_at() + PAGE + 200)
    assert _numbers(opened.stage()) == [4, 5, 6]


def test_payload_that_looks_like_a_run_is_payload(opened: Bench) -> None:
    """A page may hold whatever its writer likes, a run header of this segment too."""
    _written(opened, range(1))
    head = bytearray(run_header_bytes(1) + PAGE)
    with opened.file.open("rb") as file:
        file.seek(opened.unit_at() + PAGE)
        head[:PAGE] = file.read(PAGE)
    at = 20 * PAGE
    inner = at + PAGE
    head[48:56] = inner.to_bytes(8, "little")
    ref = ref_of(9, len(head), 5)
    from kvtier_agent.store.checksums import payload_digest

    ref = ref._replace(digest=payload_digest(bytes(head)))
    opened.chunk.payload(5, len(head))[:] = head
    opened.chunk.commit(ref, 1)
    assert opened.write([ref], at).bad == []
    assert _numbers(opened.stage()) == [0, 9]


def test_sealed_segment_is_found_from_its_summary(opened: Bench) -> None:
    _written(opened, range(4))
    _written(opened, range(4, 7), 40 * PAGE)
    opened.run(jobs.Seal, 0, *SEGMENT, [(40 * PAGE, PAGE), (PAGE, PAGE)])
    parts = opened.stage()
    assert (_numbers(parts), parts[0].sealed) == (list(range(7)), True)


def test_damaged_summary_falls_back_to_the_runs(opened: Bench) -> None:
    _written(opened, range(4))
    opened.run(jobs.Seal, 0, *SEGMENT, [(PAGE, PAGE)])
    opened.flip(opened.unit_at(1) - 2 * PAGE)
    parts = opened.stage()
    assert (_numbers(parts), parts[0].sealed) == (list(range(4)), False)


def test_units_are_listed_and_freed_ones_are_not(opened: Bench) -> None:
    other = SegmentId("pool-2", 1001, b"m" * 8)
    opened.init(segment=other, unit=5)
    (listed,) = opened.run(jobs.ListUnits)
    assert [tuple(it) for it in map(_astuple, listed.units)] == [(0, *SEGMENT), (5, *other)]
    opened.run(jobs.FreeUnits, [0])
    opened.reopen()
    (listed,) = opened.run(jobs.ListUnits)
    assert [it.unit for it in listed.units] == [5]


def _astuple(found: jobs.UnitFound) -> tuple[object, ...]:
    return found.unit, found.pool, found.sequence, found.nonce


def test_unit_whose_header_cannot_be_read_is_left_alone(opened: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.init(unit=2, segment=SEGMENT._replace(sequence=1001))
    bad, read_all = opened.mover._device.superblock.unit_at(0), io_mover.read_all

    def read(fd: int, buffers: list[memoryview], offset: int) -> None:
        if offset == bad:
            raise OSError(errno.EIO, "a bad spot")
        read_all(fd, buffers, offset)

    monkeypatch.setattr(io_mover, "read_all", read)
    (listed,) = opened.run(jobs.ListUnits)
    assert ([it.unit for it in listed.units], listed.foreign, listed.unread) == ([2], [0], 1)


def test_reused_unit_shows_nothing_of_the_segment_before(opened: Bench) -> None:
    _written(opened, range(4))
    opened.run(jobs.Seal, 0, *SEGMENT, [(PAGE, PAGE)])
    later = SegmentId(POOL, 2000, b"p" * 8)
    opened.init(segment=later)
    assert _numbers(opened.stage(segment=later)) == []


def test_pages_move_through_the_bounce_buffer(opened: Bench) -> None:
    import os

    refs = _written(opened, range(6))
    fd = os.memfd_create("bounce")
    os.ftruncate(fd, 1 << 20)
    opened.mover.carry_out(jobs.TakeBounce(1), fd, lambda _: None)
    os.close(fd)
    kept = [refs[index] for index in (0, 1, 4)]
    packed = b"".join(map(encode_ref, kept))
    (lifted,) = opened.run(jobs.Lift, 4 * PAGE, [opened.unit_at() + ref.offset for ref in kept], packed)
    assert (lifted.bad, lifted.failed) == ([], [])
    later = SegmentId(POOL, 2000, b"p" * 8)
    opened.init(segment=later, unit=3)
    (laid,) = opened.run(jobs.Lay, 4 * PAGE, POOL, 3, later.sequence, later.nonce, PAGE, 600, packed)
    assert laid.bad == []
    assert _numbers(opened.stage(segment=later, unit=3)) == [0, 1, 4]


def test_full_file_system_is_an_error_of_the_job(opened: Bench) -> None:
    from kvtier_agent.store.errors import FormatRefused

    with pytest.raises((OSError, FormatRefused)):
        opened.run(jobs.InitUnit, 1 << 40, POOL, 1, b"n" * 8)


def test_job_before_the_device_is_open_waits_for_it(bench: Bench) -> None:
    import threading

    listed: list[object] = []
    early = threading.Thread(target=lambda: listed.extend(bench.run(jobs.ListUnits)))
    early.start()
    assert listed == []
    bench.open()
    early.join(5)
    assert len(listed) == 1


def test_hashes_of_a_run_keep_their_chain(opened: Bench) -> None:
    _written(opened, range(3))
    entries = np.frombuffer(opened.stage()[0].entries, ENTRY_TYPE)
    assert [bytes(it)[:32] for it in entries["parent"]] == [bytes(32), hash_of(0), hash_of(1)]
    assert entries["parent_bytes"].tolist() == [0, 32, 32]
    assert entries["depth"].tolist() == [0, 1, 2]
    assert set(entries["serial"].tolist()) == {500}
