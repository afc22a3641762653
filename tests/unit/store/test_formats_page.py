"""The examples in bytes of docs/formats.md are what the code writes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from kvtier_agent.store.arena_format import (
    LAST_USE_AT,
    SLOT_HEADER_BYTES,
    SlotFields,
    commit_word,
    encode_slot_fields,
)
from kvtier_agent.store.checksums import page_checksum, payload_digest
from kvtier_agent.store.nvme.device import Superblock, encode_superblock
from kvtier_agent.store.nvme.segments import (
    SegmentId,
    encode_run_header,
    encode_segment_header,
    make_entries,
    run_bytes,
)
from kvtier_agent.store.refs import Ref

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
LAYOUT, HASH, PAYLOAD = b"L" * 32, b"h" * 16, b"hello"


def blocks(section: str) -> list[str]:
    """What stands between fences in the section of this title."""
    text = re.split(r"\n#+ ", PAGE.read_text().split(section)[1])[0]
    return [block.strip("\n") for block in re.findall(r"```\n(.*?)```", text, re.DOTALL)]


def check_dump(dump: str, data: bytes) -> None:
    """Every byte that is not 0 is shown, and is what the code writes."""
    shown = bytearray(len(data))
    for line in dump.splitlines():
        offset, hexadecimal = line.split(maxsplit=1)
        expected = bytes.fromhex(hexadecimal)
        shown[int(offset) : int(offset) + len(expected)] = expected
    assert bytes(shown) == data


def test_example_of_a_slot_header_is_what_the_code_writes() -> None:
    digest, checksum, dump = blocks("### A slot header in bytes")
    assert bytes.fromhex(digest) == payload_digest(PAYLOAD)
    in_arena = page_checksum("pool-1", LAYOUT, HASH, 1, 2, 7, payload_digest(PAYLOAD))
    assert bytes.fromhex(checksum) == in_arena
    fields = encode_slot_fields(
        SlotFields(
            size=5,
            stored_at=1_700_000_000,
            begun=1_000_000_000,
            checksum=in_arena,
            digest=payload_digest(PAYLOAD),
            layout=LAYOUT,
            hash=HASH,
            parent=b"",
            group=1,
            trailing=0,
            depth=0,
            shard=2,
        )
    )
    header = struct.pack("<QQ", commit_word(7, fields), 7) + fields
    assert len(header) == LAST_USE_AT
    check_dump(dump, (header + struct.pack("<I", 1_700_000_000)).ljust(SLOT_HEADER_BYTES, b"\0"))


def test_example_of_a_device_and_a_run_is_what_the_code_writes() -> None:
    superblock, header, run = blocks("### A run in bytes")
    check_dump(superblock, encode_superblock(Superblock(b"u" * 16, 4 << 20, 15, 64 << 10, 256 << 10, 1 << 20)))
    segment = SegmentId("pool-1", 9, b"nonce-08")
    check_dump(header, encode_segment_header(segment, 3, 4 << 20))
    page = Ref(
        LAYOUT,
        HASH,
        b"",
        payload_digest(PAYLOAD),
        generation=7,
        payload_offset=0,
        stored_at=1_700_000_000,
        size=len(PAYLOAD),
        group=1,
        trailing=0,
        chunk=0,
        slot=0,
        depth=0,
        segment=0,
        offset=0,
        shard=2,
    )
    entries = make_entries(segment, [page], 4096, 12)
    check_dump(run, encode_run_header(segment, LAYOUT, entries, 4096, run_bytes([len(PAYLOAD)]), 12))
