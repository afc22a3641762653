"""Chunk format 1: what is written is read back; what is torn, flipped or foreign is not."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from kvtier_agent.store import deletions
from kvtier_agent.store.arena_format import (
    CHUNK_HEADER_BYTES,
    LAST_USE_AT,
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
from kvtier_agent.store.checksums import header_checksum, page_checksum
from kvtier_agent.store.errors import ChunkDamaged, FormatRefused

POOL = "0b9d2f6e-1111-2222-3333-444455556666"
CUT = decide_geometry(65536, 1 << 20, PAGE)
FIELDS = SlotFields(
    size=65000,
    stored_at=1_700_000_000,
    begun=(1 << 63) + 5,
    checksum=b"c" * 16,
    digest=b"d" * 16,
    layout=b"L" * 32,
    hash=b"h" * 64,
    parent=b"p" * 16,
    group=0xFFFF_FFFF,
    trailing=4096,
    depth=77,
    shard=0xFFFF,
)
LAST_USE = 1_700_000_099


def slot_bytes(generation: int = 7, fields: SlotFields = FIELDS) -> bytes:
    packed = encode_slot_fields(fields)
    header = struct.pack("<QQ", commit_word(generation, packed), generation) + packed + struct.pack("<I", LAST_USE)
    return header.ljust(SLOT_HEADER_BYTES, b"\0")


def test_chunk_header_is_read_back_as_written() -> None:
    data = encode_chunk_header(42, POOL, CUT)
    assert len(data) == CHUNK_HEADER_BYTES
    assert decode_chunk_header("x", data, 42, POOL, CUT.file_bytes) == CUT


def test_chunk_of_another_format_is_refused_by_its_number() -> None:
    data = bytearray(encode_chunk_header(42, POOL, CUT))
    data[8:12] = struct.pack("<I", 3)
    data[-8:] = struct.pack("<Q", header_checksum(bytes(data[:-8])))
    with pytest.raises(FormatRefused, match="expected chunk format 1, found format 3"):
        decode_chunk_header("x", bytes(data), 42, POOL, CUT.file_bytes)


def test_chunk_header_with_any_flipped_bit_is_damaged_and_not_of_another_format() -> None:
    data = encode_chunk_header(42, POOL, CUT)
    for at in [*range(256), 2000, *range(CHUNK_HEADER_BYTES - 16, CHUNK_HEADER_BYTES)]:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(ChunkDamaged, match="x: "):
            decode_chunk_header("x", bytes(damaged), 42, POOL, CUT.file_bytes)


@pytest.mark.parametrize(
    ("chunk_id", "pool", "size"),
    [(43, POOL, CUT.file_bytes), (42, "other", CUT.file_bytes), (42, POOL, CUT.file_bytes - PAGE)],
    ids=["another-id", "another-pool", "another-size"],
)
def test_chunk_that_is_not_what_its_name_says_is_damaged(chunk_id: int, pool: str, size: int) -> None:
    with pytest.raises(ChunkDamaged):
        decode_chunk_header("x", encode_chunk_header(42, POOL, CUT), chunk_id, pool, size)


def test_committed_slot_is_read_back_as_written() -> None:
    assert decode_slot(slot_bytes(), 65536) == (7, FIELDS, LAST_USE)


def test_slot_with_any_flipped_byte_before_its_last_use_is_not_committed() -> None:
    data = slot_bytes()
    for at in range(LAST_USE_AT):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_slot(bytes(damaged), 65536)[1] is None, at


def test_last_use_may_change_under_a_committed_slot() -> None:
    data = bytearray(slot_bytes())
    data[LAST_USE_AT] ^= 0xFF
    assert decode_slot(bytes(data), 65536)[1] == FIELDS


def test_slot_between_two_pages_is_not_committed() -> None:
    old = slot_bytes(7)
    begun = struct.pack("<QQ", 0, 8) + old[SLOT_FIELDS_AT:]
    assert decode_slot(begun, 65536) == (8, None, 0)
    torn = old[:8] + struct.pack("<Q", 8) + old[SLOT_FIELDS_AT:]
    assert decode_slot(torn, 65536) == (8, None, 0)
    assert decode_slot(bytes(SLOT_HEADER_BYTES), 65536) == (0, None, 0)


def test_slot_that_claims_more_than_its_class_is_not_committed() -> None:
    assert decode_slot(slot_bytes(), 64 << 10)[1] == FIELDS
    assert decode_slot(slot_bytes(), 60 << 10)[1] is None


def test_names_of_other_files_are_no_chunks() -> None:
    assert parse_chunk_name(chunk_name(0xABC)) == 0xABC
    for name in ("0000000000000abc.new", "store.lock", "abc.chunk", deletions.FILE_NAME):
        assert parse_chunk_name(name) is None


def test_page_checksum_covers_all_that_makes_a_page_itself() -> None:
    def checksum(**other: object) -> bytes:
        cover: dict[str, object] = {
            "pool_uid": POOL,
            "layout": b"L" * 32,
            "hash_": b"h" * 32,
            "group": 1,
            "shard": 2,
            "generation": 3,
            "digest": b"x" * 16,
        }
        return page_checksum(**(cover | other))  # type: ignore[arg-type]

    others: list[dict[str, object]] = [
        {"pool_uid": "p"},
        {"layout": b"M" * 32},
        {"hash_": b"h" * 33},
        {"group": 2},
        {"shard": 1},
        {"generation": 4},
        {"digest": b"x" * 15 + b"y"},
    ]
    assert len({checksum(), *(checksum(**other) for other in others)}) == 1 + len(others)


def test_notes_of_deletions_are_read_back_in_order_and_end_at_a_torn_one(arena: Path) -> None:
    first = deletions.append(arena, 0, b"L" * 32, [b"a" * 32, b"b" * 64], 100)
    second = deletions.append(arena, first, b"M" * 32, [b"a" * 32], 200)
    assert (first, second) == (2 * deletions.RECORD_BYTES, 3 * deletions.RECORD_BYTES)
    whole = {(b"L" * 32, b"a" * 32): 100, (b"L" * 32, b"b" * 64): 100, (b"M" * 32, b"a" * 32): 200}
    assert deletions.read(arena).blocks == whole
    with (arena / deletions.FILE_NAME).open("rb+") as file:
        file.seek(second - 60)
        file.write(b"\xff")
    assert deletions.read(arena).blocks == dict(list(whole.items())[:2])
    deletions.reset(arena)
    assert deletions.read(arena) == ({}, [])


def test_notes_of_many_deletions_outgrow_the_file_and_are_kept(arena: Path) -> None:
    hashes = [f"{number}".encode().ljust(32) for number in range(3000)]
    end = 0
    for start in range(0, 3000, 500):
        end = deletions.append(arena, end, b"L" * 32, hashes[start : start + 500], start + 1)
    assert len(deletions.read(arena).blocks) == 3000


@pytest.mark.parametrize(
    ("begun", "void"), [(99, True), (100, True), (101, False)], ids=["before", "at-the-cutoff", "after"]
)
def test_slot_begun_up_to_a_deletion_is_void_and_a_later_one_is_not(begun: int, void: bool) -> None:
    deleted = deletions.Deleted({(FIELDS.layout, FIELDS.hash): 100}, [])
    assert deletions.is_void(deleted, FIELDS._replace(begun=begun)) is void
    assert not deletions.is_void(deleted, FIELDS._replace(begun=begun, layout=b"M" * 32))


@pytest.mark.parametrize(
    ("stored_at", "begun", "void"),
    [(999, 100, True), (1000, 100, False), (999, 101, False)],
    ids=["expired", "stored-since", "begun-since"],
)
def test_slot_of_what_has_expired_is_void_and_one_stored_or_begun_later_is_not(
    arena: Path, stored_at: int, begun: int, void: bool
) -> None:
    end = deletions.append_expired(arena, 0, 900, 50)
    deletions.append_expired(arena, end, 1000, 100)
    deleted = deletions.read(arena)
    assert deleted == ({}, [(1000, 100)]), "the later one covers the earlier one"
    assert deletions.is_void(deleted, FIELDS._replace(stored_at=stored_at, begun=begun)) is void


def test_older_note_behind_a_newer_one_of_the_block_does_not_weaken_it(arena: Path) -> None:
    end = deletions.append(arena, 0, b"L" * 32, [b"a" * 32], 200)
    assert deletions.append(arena, None, b"L" * 32, [b"a" * 32], 100) == 2 * end
    assert deletions.read(arena).blocks == {(b"L" * 32, b"a" * 32): 200}
