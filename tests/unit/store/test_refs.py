"""Packed page references: what is read of them without decoding the rest."""

from __future__ import annotations

from kvtier_agent.store.refs import REF_BYTES, Ref, decode_refs, encode_ref, hash_in, sizes_in

REF = Ref(
    layout=b"L" * 32,
    hash=b"h" * 16,
    parent=b"p" * 64,
    digest=b"d" * 16,
    generation=1 << 40,
    payload_offset=1 << 41,
    stored_at=11,
    size=12,
    group=13,
    trailing=14,
    chunk=1 << 42,
    slot=15,
    depth=16,
    segment=17,
    offset=18 << 12,
    shard=19,
)


def test_packed_references_come_back() -> None:
    refs = [REF, REF._replace(hash=b"i" * 64, parent=b"")]
    data = b"".join(map(encode_ref, refs))
    assert len(data) == 2 * REF_BYTES
    assert decode_refs(data) == refs


def test_sizes_and_hashes_are_read_alone() -> None:
    refs = [REF._replace(size=size, hash=bytes([size % 251]) * 32) for size in (1, 4097, (1 << 32) - 1)]
    data = b"".join(map(encode_ref, refs))
    assert sizes_in(data) == [ref.size for ref in refs]
    assert [hash_in(data, index) for index in range(3)] == [ref.hash.ljust(64, b"\0") for ref in refs]
