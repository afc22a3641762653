"""Power cuts made from a log of writes: what must be there is, what may be torn is, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dev.faults.recording import Recorder, Recording, Write, parse_recording, read_recording
from dev.faults.replay import SECTOR, apply_cut, decide_cut, decide_fragments

SIZE = 16 * SECTOR


class Memory:
    """A medium in memory."""

    def __init__(self, size: int) -> None:
        self.content = bytearray(size)

    def write_at(self, offset: int, data: memoryview) -> None:
        self.content[offset : offset + len(data)] = data


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "log")


def write(recorder: Recorder, value: int, *, at: int = 0, size: int = SIZE, durable: bool = False) -> int:
    return recorder.begin_write(at, memoryview(bytes([value]) * size), durable=durable)


def flush(recorder: Recorder) -> None:
    recorder.done(recorder.begin_flush())


def recorded(tmp_path: Path) -> Recording:
    return read_recording(tmp_path / "log")


def contents(recording: Recording, cut: int, attempts: int = 200) -> list[bytes]:
    """The content after this cut, so many times."""
    found = []
    for seed in range(attempts):
        medium = Memory(SIZE)
        apply_cut(decide_cut(recording, cut, random.Random(seed)), medium)
        found.append(bytes(medium.content))
    return found


def test_flushed_write_is_there_after_every_cut(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    flush(recorder)
    recording = recorded(tmp_path)
    assert set(contents(recording, recording.length)) == {b"\1" * SIZE}


def test_unflushed_write_is_there_absent_or_torn_at_sectors(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    recording = recorded(tmp_path)
    found = set(contents(recording, recording.length))
    assert {b"\1" * SIZE, bytes(SIZE)} < found
    sectors = {content[at : at + SECTOR] for content in found for at in range(0, SIZE, SECTOR)}
    assert sectors == {bytes(SECTOR), b"\1" * SECTOR}


def test_flush_that_was_not_answered_promises_nothing(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    recorder.begin_flush()
    recording = recorded(tmp_path)
    assert bytes(SIZE) in contents(recording, recording.length)


def test_write_in_flight_while_flushing_is_not_covered(tmp_path: Path, recorder: Recorder) -> None:
    late = write(recorder, 1)
    flushing = recorder.begin_flush()
    recorder.done(late)
    recorder.done(flushing)
    recording = recorded(tmp_path)
    assert bytes(SIZE) in contents(recording, recording.length)


def test_durable_write_survives_without_a_flush(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1, durable=True))
    recording = recorded(tmp_path)
    assert set(contents(recording, recording.length)) == {b"\1" * SIZE}


def test_durable_write_cut_before_its_answer_may_be_absent(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1, durable=True))
    assert bytes(SIZE) in contents(recorded(tmp_path), cut=1)


def test_unflushed_writes_arrive_in_any_order_over_flushed_ones(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    flush(recorder)
    recorder.done(write(recorder, 2))
    recorder.done(write(recorder, 3))
    recording = recorded(tmp_path)
    sectors = {content[:SECTOR] for content in contents(recording, recording.length)}
    assert sectors == {bytes([value]) * SECTOR for value in (1, 2, 3)}


def test_cut_leaves_out_what_began_after_it(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    flush(recorder)
    before = 4
    recorder.done(write(recorder, 2))
    assert set(contents(recorded(tmp_path), before)) == {b"\1" * SIZE}


def test_punched_hole_is_zeros_once_flushed(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    recorder.done(recorder.begin_zeros(SECTOR, 2 * SECTOR))
    flush(recorder)
    recording = recorded(tmp_path)
    (content,) = set(contents(recording, recording.length))
    assert content == b"\1" * SECTOR + bytes(2 * SECTOR) + b"\1" * (SIZE - 3 * SECTOR)


def test_marks_say_what_had_happened_before_a_cut(tmp_path: Path, recorder: Recorder) -> None:
    recorder.mark(7)
    recorder.done(write(recorder, 1))
    recorder.mark(8)
    recording = recorded(tmp_path)
    assert recording.marks_before(1) == [7]
    assert recording.marks_before(recording.length) == [7, 8]


def test_log_torn_in_a_write_ends_before_it(tmp_path: Path, recorder: Recorder) -> None:
    recorder.done(write(recorder, 1))
    write(recorder, 2)
    log = (tmp_path / "log").read_bytes()
    recording = parse_recording(memoryview(log)[:-1])
    assert [bytes(it.data or b"") for it in recording.writes] == [b"\1" * SIZE]
    assert recording.length == 2


@pytest.mark.parametrize("length", [SECTOR, SECTOR + 8, 100 * SECTOR])
def test_fragments_lie_within_their_write_and_on_its_sectors(length: int) -> None:
    rng = random.Random(5)
    write = Write(0, length, memoryview(bytes(length)), durable=False, begun=0)
    for _ in range(300):
        for fragment in decide_fragments(write, rng):
            assert 0 <= fragment.start <= length
            assert fragment.start % SECTOR == 0
            assert fragment.stop % SECTOR == 0 or fragment.stop == length
