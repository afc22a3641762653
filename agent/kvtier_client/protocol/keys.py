"""Keys: the layout's fingerprint, and block hashes where kvtier computes them itself.

Block hashes are those of vLLM's `sha256_cbor`, so that the same tokens have the same hash in every
engine. The encodings are fixed for good: docs/protocol.md, with test vectors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final

import blake3
import cbor2
import msgspec

DEFAULT_SEED: Final = "vllm-none-hash"
_FINGERPRINT_DOMAIN: Final = b"kvtier layout 1\x00"


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What must agree for one engine's pages to be usable by another.

    A field that is None is unknown, and then nothing is shared: every such fingerprint is its own.
    Use "" or () for what is known to be absent.
    """

    weights_digest: str | None
    """Content digest of the weights, never a name."""
    config_digest: str | None
    """Digest of rope and configuration overrides that change the numbers."""
    quantisation: str | None
    """Weight and KV quantisation with scales; "" for none."""
    dtype: str | None
    layers: int | None
    kv_heads: int | None
    head_size: int | None
    block_tokens: int | None
    parallel: tuple[int, ...] | None
    """Tensor, pipeline and further parallel sizes, in the connector's fixed order."""
    groups: tuple[str, ...] | None
    """The KV-cache groups: `full`, `trailing(n)`."""
    attention: str | None
    """Attention backend and axis order, such as `sdpa/HND`."""
    lora_digest: str | None
    """Content digest of the LoRA adapter; "" for none."""
    hash_algorithm: str | None
    """The engine's block hash and root seed, such as `sha256_cbor/vllm-none-hash`."""
    connector: str | None
    """The connector's name and layout version, such as `transformers/1`."""

    def fingerprint(self) -> bytes:
        """BLAKE3-256 of the canonical CBOR map of all fields, behind a versioned prefix. 32 bytes."""
        fields: dict[str, Any] = msgspec.structs.asdict(self)
        if any(value is None for value in fields.values()):
            fields["private"] = os.urandom(32)
        return blake3.blake3(_FINGERPRINT_DOMAIN + cbor2.dumps(fields, canonical=True)).digest()


def root_hash(seed: str = DEFAULT_SEED) -> bytes:
    """The parent of every chain's first block, 32 bytes."""
    return hashlib.sha256(cbor2.dumps(seed, canonical=True)).digest()


def block_hashes(
    tokens: Sequence[int],
    block_tokens: int,
    *,
    seed: str = DEFAULT_SEED,
    extra_keys: Sequence[tuple[Any, ...] | None] = (),
) -> list[bytes]:
    """Chained hashes of the full blocks of `tokens`, 32 bytes each; a trailing part block has none.

    `extra_keys[i]` is what else block i depends on, as vLLM tags it (`(("cache_salt", "a"),)`).
    """
    parent = root_hash(seed)
    hashes = []
    for index in range(len(tokens) // block_tokens):
        part = tuple(tokens[index * block_tokens : (index + 1) * block_tokens])
        extra = extra_keys[index] if index < len(extra_keys) else None
        parent = hashlib.sha256(cbor2.dumps((parent, part, extra), canonical=True)).digest()
        hashes.append(parent)
    return hashes
