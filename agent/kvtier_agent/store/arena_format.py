"""Arena chunk format 1: how a chunk file is cut. The format's page: docs/formats.md.

Pure: geometry and encodings. Mapping and ordered stores are in `chunkmap`, for movers only.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from .checksums import ALGORITHM_XXH3, header_checksum
from .errors import ChunkDamaged, FormatRefused
from .refs import Ref

PAGE: Final = 4096
CHUNK_FORMAT: Final = 1
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
_SLOT: Final = struct.Struct("<IIQ16s16s32s64s64sIIIHBB")
SLOT_FIELDS_AT: Final = 16
"""Slot headers begin with the commit word and the generation, 8 bytes each; fields follow."""
SLOT_FIELDS_END: Final = SLOT_FIELDS_AT + _SLOT.size
"""Up to here the commit word covers the header."""
LAST_USE_AT: Final = SLOT_FIELDS_END
"""The last use, unix seconds in 32 bits: written beside a committed page, and so not covered."""
_LAST_USE: Final = struct.Struct("<I")
_GENERATION: Final = struct.Struct("<Q")
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
    stored_at: int
    """Unix seconds."""
    begun: int
    """When the slot was taken for this page: CLOCK_MONOTONIC, nanoseconds. It ends with the node, as the arena does."""
    checksum: bytes
    digest: bytes
    layout: bytes
    hash: bytes
    parent: bytes
    """b"" where the block starts its chain."""
    group: int
    trailing: int
    depth: int
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


@lru_cache(maxsize=256)
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

    Raises FormatRefused when an intact header names another format, ChunkDamaged when it is not this chunk's.
    """
    magic, format_, algorithm, id_, slot_bytes, slots, _, payload_at, size, uid_bytes, uid = _CHUNK.unpack_from(data)
    (check,) = _CHUNK_CHECK.unpack_from(data, _CHUNK_CHECK_AT)
    if magic != CHUNK_MAGIC or check != header_checksum(data[:_CHUNK_CHECK_AT]):
        raise ChunkDamaged(path, "its header does not match its checksum")
    if (format_, algorithm) != (CHUNK_FORMAT, ALGORITHM_XXH3):
        raise FormatRefused(path, f"chunk format {CHUNK_FORMAT}", f"format {format_}, checksum {algorithm}")
    if (id_, uid[:uid_bytes], size) != (chunk_id, pool_uid.encode(), file_bytes):
        raise ChunkDamaged(path, f"it is chunk {id_:x} of {size} bytes, of another name or size")
    return Geometry(slot_bytes, slots, payload_at, size)


def encode_slot_fields(fields: SlotFields) -> bytes:
    """The slot header from SLOT_FIELDS_AT to SLOT_FIELDS_END."""
    return _SLOT.pack(
        fields.size,
        fields.stored_at,
        fields.begun,
        fields.checksum,
        fields.digest,
        fields.layout,
        fields.hash,
        fields.parent,
        fields.group,
        fields.trailing,
        fields.depth,
        fields.shard,
        len(fields.hash),
        len(fields.parent),
    )


def pack_slot_fields(memory: memoryview, start: int, ref: Ref, begun: int, checksum: bytes, digest: bytes) -> None:
    """Write the fields, and the last use, of the slot header at `start`."""
    _SLOT.pack_into(
        memory,
        start + SLOT_FIELDS_AT,
        ref.size,
        ref.stored_at,
        begun,
        checksum,
        digest,
        ref.layout,
        ref.hash,
        ref.parent,
        ref.group,
        ref.trailing,
        ref.depth,
        ref.shard,
        len(ref.hash),
        len(ref.parent),
    )
    _LAST_USE.pack_into(memory, start + LAST_USE_AT, ref.stored_at)


def commit_word(generation: int, fields: bytes) -> int:
    """What stands in the commit word of a slot whose page is complete."""
    return header_checksum(_GENERATION.pack(generation) + fields)


def decode_slot(data: bytes, slot_bytes: int) -> tuple[int, SlotFields | None, int]:
    """The generation of a slot header, its fields if the slot is committed, and its last use (unix seconds)."""
    commit, generation = struct.unpack_from("<QQ", data)
    if commit == 0 or commit != header_checksum(data[8:SLOT_FIELDS_END]):
        return generation, None, 0
    *fields, hash_bytes, parent_bytes = _SLOT.unpack_from(data, SLOT_FIELDS_AT)
    found = SlotFields(*fields)
    if not 0 < found.size <= slot_bytes:
        return generation, None, 0
    (last_use,) = _LAST_USE.unpack_from(data, LAST_USE_AT)
    return generation, found._replace(hash=found.hash[:hash_bytes], parent=found.parent[:parent_bytes]), last_use
