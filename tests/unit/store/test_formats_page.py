"""The example in bytes of docs/formats.md is what the code writes."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from kvtier_agent.store.arena_format import SlotFields, commit_word, encode_slot_fields
from kvtier_agent.store.checksums import page_checksum
from kvtier_agent.store.segments import Entry, encode_run_header

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
LAYOUT, HASH, PAYLOAD = b"L" * 32, b"h" * 16, memoryview(b"hello")


def blocks() -> list[str]:
    """What stands between fences in the example's section."""
    section = PAGE.read_text().split("## An example in bytes")[1]
    return [text.strip("\n") for text in re.findall(r"```\n(.*?)```", section, re.DOTALL)]


def check_dump(dump: str, data: bytes) -> None:
    for line in dump.splitlines():
        offset, shown = line.split(maxsplit=1)
        expected = bytes.fromhex(shown)
        assert data[int(offset) : int(offset) + len(expected)] == expected, line


def test_example_of_the_formats_page_is_what_the_code_writes() -> None:
    checksum, slot, media_checksum, run = blocks()
    in_arena = page_checksum("pool-1", LAYOUT, HASH, 1, 2, 7, PAYLOAD)
    assert bytes.fromhex(checksum) == in_arena
    fields = encode_slot_fields(SlotFields(5, 1_700_000_000_000, in_arena, LAYOUT, HASH, b"", 1, 2))
    check_dump(slot, struct.pack("<QQ", commit_word(7, fields), 7) + fields)
    on_medium = page_checksum("pool-1", LAYOUT, HASH, 1, 2, 9, PAYLOAD)
    assert bytes.fromhex(media_checksum) == on_medium
    check_dump(run, encode_run_header(9, 4096, [Entry(LAYOUT, HASH, b"", 1, 2, 5, 8192, on_medium)], 8192))
