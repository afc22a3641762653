"""Checksums of pages: XXH3-128 over the payload, and over what a page is together with that digest.

The cover is fixed by docs/formats.md. A page read under another pool, layout, key or generation than
it was written under does not match, even where its bytes do; the payload is hashed once a copy.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

ALGORITHM_XXH3: Final = 1
"""Number of XXH3 in headers: 64 bits over headers, 128 bits over pages."""
DIGEST_BYTES: Final = 16

_TAIL: Final = struct.Struct("<IHQ16s")


def payload_digest(payload: bytes | memoryview) -> bytes:
    """16 bytes over a payload. Releases the GIL."""
    return bytes(xxhash.xxh3_128_digest(payload))


def page_checksum(
    pool_uid: str, layout: bytes, hash_: bytes, group: int, shard: int, generation: int, digest: bytes
) -> bytes:
    """16 bytes over (pool, layout, hash, group, shard, generation, digest of the payload)."""
    uid = pool_uid.encode()
    head = b"%c%b%b%c%b" % (len(uid), uid, layout, len(hash_), hash_)
    return bytes(xxhash.xxh3_128_digest(head + _TAIL.pack(group, shard, generation, digest)))


def header_checksum(data: bytes | memoryview) -> int:
    """XXH3-64, never 0, so that zeroed memory never looks checked."""
    return int(xxhash.xxh3_64_intdigest(data)) or 1
