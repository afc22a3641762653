"""Keys: hashes that vLLM would compute, and fingerprints that separate what differs."""

from __future__ import annotations

import msgspec
import pytest
from kvtier_client import Layout, block_hashes, root_hash

from tests.unit.client.test_protocol_page import LAYOUT

VECTORS = {
    "vllm-none-hash": (
        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
        "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749",
        "c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c",
        "b0912961bd83f2398b3a733c915c0082190e532852588e1f43a302bffb430e52",
    ),
    "0": (
        "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
        "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
        "fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac",
        "b369ed1147387070c9542cc12ec10dc4392e36a849b1d3f66319e48e8d5a85db",
    ),
}


@pytest.mark.parametrize("seed", VECTORS)
def test_block_hashes_are_those_of_vllm(seed: str) -> None:
    root, first, second, salted = VECTORS[seed]
    assert root_hash(seed).hex() == root
    assert [value.hex() for value in block_hashes(range(32), 16, seed=seed)] == [first, second]
    tenant = (("cache_salt", "tenantA"),)
    assert [value.hex() for value in block_hashes(range(16), 16, seed=seed, extra_keys=[tenant])] == [salted]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (15, 0), (16, 1), (31, 1), (32, 2)])
def test_only_full_blocks_have_a_hash(tokens: int, blocks: int) -> None:
    assert len(block_hashes(range(tokens), 16)) == blocks


def test_another_first_token_changes_every_hash() -> None:
    one, other = block_hashes(range(64), 16), block_hashes([99, *range(1, 64)], 16)
    assert not set(one) & set(other)


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Layout)])
def test_every_field_separates_and_unknown_shares_nothing(field: str) -> None:
    value = getattr(LAYOUT, field)
    other = {str: "other", int: 7, tuple: ("other",)}[type(value)]
    if field == "parallel":
        other = (2, 1)
    assert msgspec.structs.replace(LAYOUT, **{field: other}).fingerprint() != LAYOUT.fingerprint()
    unknown = msgspec.structs.replace(LAYOUT, **{field: None})
    assert unknown.fingerprint() != unknown.fingerprint()
