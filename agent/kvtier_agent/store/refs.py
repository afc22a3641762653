"""Packed page references: what the index tells movers of pages and their slots (`kvtier_index.REF_BYTES`)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_REF: Final = struct.Struct("<32s64s64s16sQQIIIIQIIIIHBB")
REF_BYTES: Final = _REF.size
_HASH: Final = slice(32, 96)
_SIZE_AT: Final = struct.calcsize("<32s64s64s16sQQI")


class Ref(NamedTuple):
    """A page, the slot that takes it or has it, and its place on nvme."""

    layout: bytes
    hash: bytes
    parent: bytes
    """b"" where the block starts its chain."""
    digest: bytes
    """Of the payload; zeros while that is not known."""
    generation: int
    """Of the slot."""
    payload_offset: int
    """In the chunk's file."""
    stored_at: int
    """Unix seconds."""
    size: int
    group: int
    trailing: int
    chunk: int
    slot: int
    depth: int
    segment: int
    """The index's number of the nvme segment; meaningless without a copy there."""
    offset: int
    """Of the payload in that segment, bytes."""
    shard: int


def decode_refs(data: bytes) -> list[Ref]:
    """What `Index.refs` packed."""
    return [
        Ref(
            layout,
            hash_[:hash_bytes],
            parent[:parent_bytes],
            digest,
            generation,
            payload_offset,
            stored_at,
            size,
            group,
            trailing,
            chunk,
            slot,
            depth,
            segment,
            offset << 12,
            shard,
        )
        for (
            layout, hash_, parent, digest, generation, payload_offset, stored_at, size, group, trailing, chunk, slot,
            depth, segment, offset, shard, hash_bytes, parent_bytes,
        ) in _REF.iter_unpack(data)
    ]  # fmt: skip


def sizes_in(data: bytes) -> list[int]:
    """The size of each page that `Index.refs` packed, without the rest."""
    sizes: list[int] = memoryview(data).cast("I")[_SIZE_AT // 4 :: REF_BYTES // 4].tolist()
    return sizes


def hash_in(data: bytes, index: int) -> bytes:
    """The hash of page number `index` that `Index.refs` packed, padded to 64 bytes."""
    start = index * REF_BYTES
    return data[start + _HASH.start : start + _HASH.stop]


def encode_ref(ref: Ref) -> bytes:
    """As `Index.refs` packs one."""
    return _REF.pack(
        ref.layout, ref.hash, ref.parent, ref.digest, ref.generation, ref.payload_offset, ref.stored_at, ref.size,
        ref.group, ref.trailing, ref.chunk, ref.slot, ref.depth, ref.segment, ref.offset >> 12, ref.shard,
        len(ref.hash), len(ref.parent),
    )  # fmt: skip
