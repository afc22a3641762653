"""Checksums of pages: XXH3-128 over what a page is, and then its bytes.

The cover is fixed by docs/formats.md. A page read under another pool, layout, key or generation than
it was written under does not match, even where its bytes do.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

ALGORITHM_XXH3: Final = 1
"""Number of XXH3 in headers: 64 bits over headers, 128 bits over pages."""

_TAIL: Final = struct.Struct("<IHQQ")


def page_checksum(
    pool_uid: str, layout: bytes, hash_: bytes, group: int, shard: int, generation: int, payload: memoryview
) -> bytes:
    """16 bytes over (pool, layout, hash, group, shard, generation, size, payload)."""
    uid = pool_uid.encode()
    state = xxhash.xxh3_128()
    state.update(bytes((len(uid),)) + uid + layout + bytes((len(hash_),)) + hash_)
    state.update(_TAIL.pack(group, shard, generation, len(payload)))
    state.update(payload)
    return bytes(state.digest())


def header_checksum(data: bytes | memoryview) -> int:
    """XXH3-64, never 0, so that zeroed memory never looks checked."""
    return int(xxhash.xxh3_64_intdigest(data)) or 1
