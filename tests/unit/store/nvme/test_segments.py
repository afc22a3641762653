"""Media format 1: encodings. What a mover does with them is in test_io_mover.py."""

from __future__ import annotations

import kvtier_index
import numpy as np
import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.errors import FormatRefused
from kvtier_agent.store.nvme import segments
from kvtier_agent.store.nvme.segments import ENTRY_TYPE, SegmentId

from tests.unit.store.nvme.bench import LAYOUT, SEGMENT, hash_of, ref_of

UNIT = 1 << 20


def _run(count: int = 3, offset: int = PAGE, segment: SegmentId = SEGMENT) -> tuple[bytes, bytes, int]:
    """Header, entries and bytes of a run."""
    refs = [ref_of(number, 5000, number) for number in range(count)]
    entries = segments.make_entries(segment, refs, offset, 500)
    total = segments.run_bytes([ref.size for ref in refs])
    return segments.encode_run_header(segment, LAYOUT, entries, offset, total, 500), entries, total


def test_entries_of_index_and_media_have_one_size() -> None:
    assert kvtier_index.ENTRY_BYTES == segments.ENTRY_BYTES == ENTRY_TYPE.itemsize == 200


def test_segment_header_comes_back_for_its_unit_only() -> None:
    page = segments.encode_segment_header(SEGMENT, 3, UNIT)
    assert len(page) == PAGE
    assert segments.decode_segment_header("x", page, 3, UNIT) == SEGMENT
    assert segments.decode_segment_header("x", page, 4, UNIT) is None
    assert segments.decode_segment_header("x", bytes(PAGE), 3, UNIT) is None


def test_segment_header_of_another_format_is_refused() -> None:
    page = bytearray(segments.encode_segment_header(SEGMENT, 3, UNIT))
    page[8] = 9
    damaged = bytes(page)
    assert segments.decode_segment_header("x", damaged, 3, UNIT) is None
    page[-8:] = segments._with_check(damaged[:-8])[-8:]
    with pytest.raises(FormatRefused, match="media format 1, found format 9"):
        segments.decode_segment_header("x", bytes(page), 3, UNIT)


def test_run_header_comes_back_with_places_behind_it() -> None:
    head, _, total = _run()
    assert segments.peek_run_header(head, SEGMENT, PAGE, UNIT) == len(head) == PAGE
    run = segments.decode_run_header(head, PAGE)
    assert run is not None
    assert (run.run_bytes, run.layout) == (total, LAYOUT)
    assert [int(it) * PAGE for it in run.entries["offset"]] == [2 * PAGE, 4 * PAGE, 6 * PAGE]
    assert [bytes(it)[:32] for it in run.entries["hash"]] == [hash_of(number) for number in range(3)]


@pytest.mark.parametrize("at", [0, 16, 24, 40, 60, 128, 200, 128 + 3 * 200 - 4])
def test_flipped_run_header_is_not_believed(at: int) -> None:
    head = bytearray(_run()[0])
    head[at] ^= 1
    believed = segments.peek_run_header(head, SEGMENT, PAGE, UNIT) and segments.decode_run_header(bytes(head), PAGE)
    assert not believed


def test_run_header_of_another_nonce_is_not_found() -> None:
    unit = bytearray(UNIT)
    mine, foreign = _run()[0], _run(offset=8 * PAGE, segment=SEGMENT._replace(nonce=b"m" * 8))[0]
    unit[PAGE : PAGE + len(mine)] = mine
    unit[8 * PAGE : 8 * PAGE + len(foreign)] = foreign
    assert segments.candidate_runs(memoryview(unit), SEGMENT) == [PAGE]


def test_run_that_names_pages_outside_itself_is_not_believed() -> None:
    refs = [ref_of(0, 5000, 0)]
    entries = np.frombuffer(segments.make_entries(SEGMENT, refs, PAGE, 500), ENTRY_TYPE).copy()
    entries["offset"] = 50
    head = segments.encode_run_header(SEGMENT, LAYOUT, entries.tobytes(), PAGE, segments.run_bytes([5000]), 500)
    assert segments.decode_run_header(head, PAGE) is None


def test_summary_ends_with_the_unit_and_comes_back() -> None:
    other = b"M" * 32
    _, first, _ = _run()
    _, second, _ = _run(offset=20 * PAGE)
    offset, summary = segments.encode_summary(SEGMENT, [(LAYOUT, first), (other, second), (LAYOUT, first)], UNIT)
    assert offset + len(summary) == UNIT
    assert len(summary) == segments.summary_bytes(9, 2)
    place = segments.decode_trailer(summary[-PAGE:], SEGMENT, UNIT)
    assert place is not None
    tables = segments.decode_summary(summary, place)
    assert tables is not None
    assert tables[0] == LAYOUT + other
    assert np.frombuffer(tables[1], ENTRY_TYPE)["layout"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_summary_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        segments.encode_summary(SEGMENT, [(LAYOUT, _run()[1])], UNIT, UNIT - PAGE)


@pytest.mark.parametrize("at", [0, 40, 250])
def test_flipped_summary_is_not_believed(at: int) -> None:
    _, summary = segments.encode_summary(SEGMENT, [(LAYOUT, _run()[1])], UNIT)
    place = segments.decode_trailer(summary[-PAGE:], SEGMENT, UNIT)
    assert place is not None
    damaged = bytearray(summary)
    damaged[at] ^= 1
    assert segments.decode_summary(damaged, place) is None


def test_trailer_of_the_unit_before_is_not_this_segments() -> None:
    _, summary = segments.encode_summary(SEGMENT, [(LAYOUT, _run()[1])], UNIT)
    assert segments.decode_trailer(summary[-PAGE:], SEGMENT._replace(sequence=1001), UNIT) is None
