"""Arena chunk format 0: how a chunk file is cut. The format's page: docs/formats.md.

Pure: geometry and encodings. Mapping and ordered stores are in `chunkmap`, for movers only.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from .checksums import ALGORITHM_XXH3, header_checksum
from .errors import FormatRefused

PAGE: Final = 4096
CHUNK_FORMAT: Final = 0
CHUNK_MAGIC: Final = b"KVTCHUNK"
CHUNK_HEADER_BYTES: Final = PAGE
SLOT_HEADER_BYTES: Final = 256
CHUNK_TARGET_BYTES: Final = 32 << 20
"""Chunks are about this large: small enough to give back, large enough to be few."""
MAX_PAGE_BYTES: Final = 256 << 20
"""Largest page that is stored."""

_CHUNK: Final = struct.Struct("<8sIIQQQQQQB128s")
_CHUNK_CHECK: Final = struct.Struct("<Q")
_CHUNK_CHECK_AT: Final = CHUNK_HEADER_BYTES - _CHUNK_CHECK.size
_SLOT: Final = struct.Struct("<QQ16s32s64s64sIHBB")
SLOT_FIELDS_AT: Final = 16
"""Slot headers begin with the commit word and the generation, 8 bytes each; fields follow."""
_CHUNK_NAME: Final = re.compile(r"([0-9a-f]{16})\.chunk")
_POOL_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")


class Geometry(NamedTuple):
    """How one chunk is cut."""

    slot_bytes: int
    slots: int
    payload_at: int
    file_bytes: int

    def header_offset(self, slot: int) -> int:
        """Of the slot's header in the file."""
        return CHUNK_HEADER_BYTES + slot * SLOT_HEADER_BYTES

    def generation_offset(self, slot: int) -> int:
        """Of the slot's 64-bit generation in the file."""
        return self.header_offset(slot) + 8

    def payload_offset(self, slot: int) -> int:
        """Of the slot's payload in the file."""
        return self.payload_at + slot * self.slot_bytes


class SlotFields(NamedTuple):
    """What a committed slot says about its page."""

    size: int
    last_use_ms: int
    checksum: bytes
    layout: bytes
    hash: bytes
    parent: bytes
    """b"" where the block starts its chain."""
    group: int
    shard: int


def round_up(size: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


def is_pool_uid(uid: str) -> bool:
    """Whether `uid` can name a folder and stand in a header."""
    return _POOL_UID.fullmatch(uid) is not None


def chunk_name(chunk_id: int) -> str:
    """File name of a chunk."""
    return f"{chunk_id:016x}.chunk"


def parse_chunk_name(name: str) -> int | None:
    """The chunk id that a file name stands for; None: it is no chunk."""
    match = _CHUNK_NAME.fullmatch(name)
    return int(match.group(1), 16) if match else None


def decide_geometry(slot_bytes: int, target_bytes: int, file_alignment: int) -> Geometry:
    """The largest cut of at most `target_bytes` in whole `file_alignment` units; at least one slot."""
    slots = max(1, (target_bytes - CHUNK_HEADER_BYTES) // (slot_bytes + SLOT_HEADER_BYTES))
    while True:
        payload_at = round_up(CHUNK_HEADER_BYTES + slots * SLOT_HEADER_BYTES, PAGE)
        file_bytes = round_up(payload_at + slots * slot_bytes, file_alignment)
        if slots == 1 or file_bytes <= target_bytes:
            return Geometry(slot_bytes, slots, payload_at, file_bytes)
        slots -= 1


def encode_chunk_header(chunk_id: int, pool_uid: str, cut: Geometry) -> bytes:
    """The first page of a chunk file."""
    uid = pool_uid.encode()
    head = _CHUNK.pack(
        CHUNK_MAGIC,
        CHUNK_FORMAT,
        ALGORITHM_XXH3,
        chunk_id,
        cut.slot_bytes,
        cut.slots,
        CHUNK_HEADER_BYTES,
        cut.payload_at,
        cut.file_bytes,
        len(uid),
        uid,
    ).ljust(_CHUNK_CHECK_AT, b"\0")
    return head + _CHUNK_CHECK.pack(header_checksum(head))


def decode_chunk_header(path: str, data: bytes, chunk_id: int, pool_uid: str, file_bytes: int) -> Geometry:
    """The chunk's geometry.

    Raises FormatRefused when it is not a chunk of this format, id, pool and file size.
    """
    magic, format_, algorithm, id_, slot_bytes, slots, _, payload_at, size, uid_bytes, uid = _CHUNK.unpack_from(data)
    if magic != CHUNK_MAGIC:
        raise FormatRefused(path, "an arena chunk", f"magic {magic!r}")
    if (format_, algorithm) != (CHUNK_FORMAT, ALGORITHM_XXH3):
        raise FormatRefused(path, f"chunk format {CHUNK_FORMAT}", f"format {format_}, checksum {algorithm}")
    cut = Geometry(slot_bytes, slots, payload_at, size)
    (check,) = _CHUNK_CHECK.unpack_from(data, _CHUNK_CHECK_AT)
    if check != header_checksum(data[:_CHUNK_CHECK_AT]):
        raise FormatRefused(path, "an intact chunk header", "a wrong header checksum")
    if (id_, uid[:uid_bytes].decode(), size) != (chunk_id, pool_uid, file_bytes):
        raise FormatRefused(path, f"chunk {chunk_id:x} of pool {pool_uid}, {file_bytes} bytes", f"chunk {id_:x}")
    return cut


def encode_slot_fields(fields: SlotFields) -> bytes:
    """The slot header from SLOT_FIELDS_AT to its end."""
    return _SLOT.pack(
        fields.size,
        fields.last_use_ms,
        fields.checksum,
        fields.layout,
        fields.hash,
        fields.parent,
        fields.group,
        fields.shard,
        len(fields.hash),
        len(fields.parent),
    ).ljust(SLOT_HEADER_BYTES - SLOT_FIELDS_AT, b"\0")


def commit_word(generation: int, fields: bytes) -> int:
    """What stands in the commit word of a slot whose page is complete."""
    return header_checksum(struct.pack("<Q", generation) + fields)


def decode_slot(data: bytes, slot_bytes: int) -> tuple[int, SlotFields | None]:
    """The generation of a slot header, and its fields if the slot is committed."""
    commit, generation = struct.unpack_from("<QQ", data)
    if commit == 0 or commit != commit_word(generation, data[SLOT_FIELDS_AT:SLOT_HEADER_BYTES]):
        return generation, None
    size, last_use, checksum, layout, hash_, parent, group, shard, hash_bytes, parent_bytes = _SLOT.unpack_from(
        data, SLOT_FIELDS_AT
    )
    if not 0 < size <= slot_bytes:
        return generation, None
    return generation, SlotFields(
        size, last_use, checksum, layout, hash_[:hash_bytes], parent[:parent_bytes], group, shard
    )
