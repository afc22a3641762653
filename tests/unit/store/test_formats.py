"""Chunk and media format 0: what is written is read back, what is torn, flipped or foreign is not."""

from __future__ import annotations

import os
import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kvtier_agent.store.arena_format import (
    CHUNK_HEADER_BYTES,
    PAGE,
    SLOT_FIELDS_AT,
    SLOT_HEADER_BYTES,
    SlotFields,
    chunk_name,
    commit_word,
    decide_geometry,
    decode_chunk_header,
    decode_slot,
    encode_chunk_header,
    encode_slot_fields,
    parse_chunk_name,
)
from kvtier_agent.store.checksums import page_checksum
from kvtier_agent.store.errors import FormatRefused
from kvtier_agent.store.media import (
    Scan,
    create_segment,
    ensure_format,
    list_segments,
    run_entries_at,
    seal_segment,
    unlink_segments,
)
from kvtier_agent.store.segments import (
    FORMAT_FILE,
    SEGMENT_HEADER_BYTES,
    Entry,
    encode_run_header,
    encode_summary,
    parse_segment_name,
    run_bytes,
    segment_name,
)

POOL = "0b9d2f6e-1111-2222-3333-444455556666"
CUT = decide_geometry(65536, 1 << 20, PAGE)
FIELDS = SlotFields(65000, 1_700_000_000_000, b"c" * 16, b"L" * 32, b"h" * 64, b"p" * 16, 0xFFFF_FFFF, 0xFFFF)
SEQUENCE = 0x0006_3F00_0000_0001


def slot_bytes(generation: int = 7, fields: SlotFields = FIELDS) -> bytes:
    packed = encode_slot_fields(fields)
    return struct.pack("<QQ", commit_word(generation, packed), generation) + packed


def test_chunk_header_is_read_back_as_written() -> None:
    data = encode_chunk_header(42, POOL, CUT)
    assert len(data) == CHUNK_HEADER_BYTES
    assert decode_chunk_header("x", data, 42, POOL, CUT.file_bytes) == CUT


def test_chunk_of_another_format_is_refused_by_its_number() -> None:
    data = bytearray(encode_chunk_header(42, POOL, CUT))
    data[8:12] = struct.pack("<I", 3)
    with pytest.raises(FormatRefused, match="expected chunk format 0, found format 3"):
        decode_chunk_header("x", bytes(data), 42, POOL, CUT.file_bytes)


@pytest.mark.parametrize(
    ("chunk_id", "pool", "size"),
    [(43, POOL, CUT.file_bytes), (42, "other", CUT.file_bytes), (42, POOL, CUT.file_bytes - PAGE)],
    ids=["another-id", "another-pool", "another-size"],
)
def test_chunk_that_is_not_what_its_name_says_is_refused(chunk_id: int, pool: str, size: int) -> None:
    with pytest.raises(FormatRefused):
        decode_chunk_header("x", encode_chunk_header(42, POOL, CUT), chunk_id, pool, size)


def test_committed_slot_is_read_back_as_written() -> None:
    data = slot_bytes()
    assert len(data) == SLOT_HEADER_BYTES
    assert decode_slot(data, 65536) == (7, FIELDS)


def test_slot_with_any_flipped_byte_is_not_committed() -> None:
    data = slot_bytes()
    for at in range(SLOT_HEADER_BYTES):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_slot(bytes(damaged), 65536)[1] is None, at


def test_slot_between_two_pages_is_not_committed() -> None:
    old = slot_bytes(7)
    begun = struct.pack("<QQ", 0, 8) + old[SLOT_FIELDS_AT:]
    assert decode_slot(begun, 65536) == (8, None)
    torn = struct.pack("<Q", int.from_bytes(old[:8], "little")) + struct.pack("<Q", 8) + old[SLOT_FIELDS_AT:]
    assert decode_slot(torn, 65536) == (8, None)
    assert decode_slot(bytes(SLOT_HEADER_BYTES), 65536) == (0, None)


def test_names_of_other_files_are_no_chunks_and_no_segments() -> None:
    assert parse_chunk_name(chunk_name(0xABC)) == 0xABC
    assert parse_segment_name(segment_name(0xABC)) == 0xABC
    for name in ("0000000000000abc.new", "store.lock", "abc.chunk", "abc.seg", "FORMAT"):
        assert parse_chunk_name(name) is None
        assert parse_segment_name(name) is None


def test_page_checksum_covers_all_that_makes_a_page_itself() -> None:
    def checksum(**other: object) -> bytes:
        cover: dict[str, object] = {
            "pool_uid": POOL,
            "layout": b"L" * 32,
            "hash_": b"h" * 32,
            "group": 1,
            "shard": 2,
            "generation": 3,
            "payload": memoryview(b"x" * 100),
        }
        return page_checksum(**(cover | other))  # type: ignore[arg-type]

    others: list[dict[str, object]] = [
        {"pool_uid": "p"},
        {"layout": b"M" * 32},
        {"hash_": b"h" * 33},
        {"group": 2},
        {"shard": 1},
        {"generation": 4},
        {"payload": memoryview(b"x" * 99 + b"y")},
    ]
    assert len({checksum(), *(checksum(**other) for other in others)}) == 1 + len(others)


class Written:
    """A segment with runs of a known content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = SEGMENT_HEADER_BYTES
        self.entries: list[list[Entry]] = []
        create_segment(path, POOL, SEQUENCE, 1 << 20)

    def run(self, pages: int, size: int = 10_000, seed: int = 0) -> int:
        """Append a run; returns its offset."""
        payloads = [random.Random(f"{seed}/{number}").randbytes(size) for number in range(pages)]
        entries = [
            Entry(b"L" * 32, bytes([seed, number]) * 16, b"", 0, 0, size, at, self.checksum(seed, number, payload))
            for number, (at, payload) in enumerate(
                zip(run_entries_at(self.offset, [size] * pages), payloads, strict=True)
            )
        ]
        total = run_bytes([size] * pages)
        with self.path.open("rb+") as file:
            file.seek(self.offset)
            file.write(encode_run_header(SEQUENCE, self.offset, entries, total))
            for entry, payload in zip(entries, payloads, strict=True):
                file.seek(entry.offset)
                file.write(payload)
        self.entries.append(entries)
        at, self.offset = self.offset, self.offset + total
        return at

    def checksum(self, seed: int, number: int, payload: bytes) -> bytes:
        return page_checksum(POOL, b"L" * 32, bytes([seed, number]) * 16, 0, 0, SEQUENCE, memoryview(payload))

    def flip(self, at: int) -> None:
        with self.path.open("rb+") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 0x40]))

    def scan(self) -> Scan:
        return Scan(self.path, POOL, SEQUENCE)

    def all(self) -> list[Entry]:
        return [entry for run in self.entries for entry in run]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / POOL / segment_name(SEQUENCE))


def test_open_segment_is_read_back_from_its_run_headers(written: Written) -> None:
    written.run(3, seed=1)
    written.run(100, size=500, seed=2)
    scan = written.scan()
    assert (scan.entries, scan.faults, scan.sealed, scan.end) == (written.all(), 0, False, written.offset)


def test_sealed_segment_is_read_back_from_its_summary_alone(written: Written) -> None:
    first = written.run(3, seed=1)
    written.run(40, size=500, seed=2)
    size = seal_segment(written.path, POOL, SEQUENCE)
    assert written.path.stat().st_size == size
    written.flip(first + 20)
    scan = written.scan()
    assert (scan.entries, scan.faults, scan.sealed) == (written.all(), 0, True)
    assert seal_segment(written.path, POOL, SEQUENCE) == 0


def test_sealed_segment_with_a_damaged_summary_is_read_from_its_runs(written: Written) -> None:
    written.run(3, seed=1)
    seal_segment(written.path, POOL, SEQUENCE)
    written.flip(written.offset + 40)
    scan = written.scan()
    assert (scan.entries, scan.faults, scan.sealed) == (written.all(), 1, False)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"size": 1 << 60}, id="size-beyond-the-file"),
        pytest.param({"size": 0}, id="no-size"),
        pytest.param({"offset": (1 << 63) - 4096}, id="offset-beyond-the-file"),
        pytest.param({"offset": SEGMENT_HEADER_BYTES + 1}, id="offset-unaligned"),
    ],
)
@pytest.mark.parametrize("place", ["run", "summary"])
def test_page_that_cannot_lie_in_the_file_is_not_believed_under_a_matching_checksum(
    written: Written, place: str, change: dict[str, int]
) -> None:
    written.run(1, seed=1)
    at = written.run(2, seed=2)
    good, forged = written.entries[1][0], written.entries[1][1]._replace(**change)
    with written.path.open("rb+") as file:
        if place == "run":
            file.seek(at)
            file.write(encode_run_header(SEQUENCE, at, [good, forged], written.offset - at))
        else:
            file.truncate(written.offset)
            file.seek(written.offset)
            file.write(encode_summary(SEQUENCE, written.offset, [*written.entries[0], good, forged]))
    scan = written.scan()
    assert scan.entries == (written.entries[0] if place == "run" else written.all())
    assert not scan.sealed


def test_torn_run_header_at_the_end_is_silent(written: Written) -> None:
    written.run(2, seed=1)
    last = written.run(2, seed=2)
    written.flip(last + 70)
    scan = written.scan()
    assert (scan.entries, scan.faults, scan.end) == (written.entries[0], 0, last)


def test_last_run_without_all_its_payload_is_silent(written: Written) -> None:
    written.run(2, seed=1)
    last = written.run(2, seed=2)
    written.flip(written.entries[1][1].offset + 9_999)
    scan = written.scan()
    assert (scan.entries, scan.faults, scan.end) == (written.entries[0], 0, last)


def test_damaged_run_header_in_the_middle_is_counted_and_the_rest_found(written: Written) -> None:
    written.run(2, seed=1)
    middle = written.run(2, seed=2)
    written.run(2, seed=3)
    for at in (0, 16, 24, 32, 40, 48, 70, 300):
        written.flip(middle + at)
        scan = written.scan()
        assert (scan.entries, scan.faults) == (written.entries[0] + written.entries[2], 1), at
        written.flip(middle + at)


def test_segment_with_a_damaged_header_is_not_believed(written: Written) -> None:
    written.run(2, seed=1)
    written.flip(100)
    assert written.scan().usable is False


def test_segment_of_another_format_is_refused_and_kept(written: Written) -> None:
    written.run(2, seed=1)
    with written.path.open("rb+") as file:
        file.seek(8)
        file.write(struct.pack("<I", 9))
    before = written.path.read_bytes()
    with pytest.raises(FormatRefused, match="expected media format 0, found format 9"):
        written.scan()
    assert written.path.read_bytes() == before


def test_run_of_another_segment_is_not_believed(written: Written, tmp_path: Path) -> None:
    at = written.run(2, seed=1)
    other = tmp_path / POOL / segment_name(SEQUENCE + 1)
    create_segment(other, POOL, SEQUENCE + 1, 1 << 20)
    with other.open("rb+") as file:
        file.seek(at)
        file.write(written.path.read_bytes()[at : written.offset])
    assert Scan(other, POOL, SEQUENCE + 1).entries == []


@pytest.mark.parametrize("seed", range(30))
def test_segment_with_random_damage_yields_only_what_was_written(written: Written, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(6):
        written.run(dice.randrange(1, 30), size=dice.randrange(1, 9_000), seed=number)
    if dice.random() < 0.5:
        seal_segment(written.path, POOL, SEQUENCE)
    size = written.path.stat().st_size
    for _ in range(dice.randrange(1, 6)):
        written.flip(dice.randrange(SEGMENT_HEADER_BYTES, size))
    if dice.random() < 0.5:
        os.truncate(written.path, dice.randrange(SEGMENT_HEADER_BYTES, size))
    assert set(written.scan().entries) <= set(written.all())


def test_device_folder_gets_its_format_once_and_keeps_it(tmp_path: Path) -> None:
    ensure_format(tmp_path)
    ensure_format(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_text() == "kvtier media format 0\n"


@pytest.mark.parametrize("text", ["kvtier media format 1\n", "something else\n", ""])
def test_device_of_another_format_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FORMAT_FILE).write_text(text)
    with pytest.raises(FormatRefused, match="expected media format 0"):
        ensure_format(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_text() == text


def test_segment_can_be_made_while_the_last_one_of_its_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / POOL
    folder.mkdir()
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            unlink_segments(folder, [segment_name(1)])

    with ThreadPoolExecutor(1) as mover:
        removing = mover.submit(remove)
        try:
            for _ in range(300):
                create_segment(folder / segment_name(2), POOL, 2, 4 * PAGE)
                (folder / segment_name(2)).unlink()
        finally:
            ended.set()
        removing.result()


def test_unlinked_segments_are_gone_and_so_is_their_empty_folder(written: Written, tmp_path: Path) -> None:
    assert [(it.pool, it.sequence) for it in list_segments(tmp_path)] == [(POOL, SEQUENCE)]
    unlink_segments(written.path.parent, [written.path.name])
    assert list_segments(tmp_path) == []
    assert not written.path.parent.exists()
    unlink_segments(written.path.parent, [written.path.name])
