"""What the crash test stores: pools, layouts, chains that share ancestors, and bytes that follow from their key.

Nothing is kept to compare with: whoever knows a page's key can make the only right payload again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NewType

from blake3 import blake3
from kvtier_client.protocol.messages import PageId, Reach

BlockHash = NewType("BlockHash", bytes)
"""A block's hash: random here, since the store takes hashes as opaque."""


POOLS: Final = ("one", "two")
"""Both hold the same layouts, and some of the same hashes, with other bytes."""


@dataclass(frozen=True)
class Shape:
    """A layout in a pool: which pages make a block whole, and how long each is."""

    kind: str
    page_bytes: dict[PageId, int]
    ranks_apart: bool = False
    """Every page comes in a put of its own, as from one rank each."""
    hash_bytes: int = 32
    pool: str = POOLS[0]

    @property
    def name(self) -> str:
        """Names it in the whole test."""
        return f"{self.pool}/{self.kind}"

    @property
    def fingerprint(self) -> bytes:
        """The layout's key space, 32 bytes; the same in every pool."""
        return blake3(f"kvtier crash test layout {self.kind}".encode()).digest()

    @property
    def pages(self) -> tuple[PageId, ...]:
        """The pages of a whole block, in the order in which they are put."""
        return tuple(self.page_bytes)


_KINDS: Final = (
    Shape("tiny", {PageId(0, 0): 1_000}, hash_bytes=16),
    Shape("aligned", {PageId(0, 0): 16_384}),
    Shape("odd", {PageId(0, 0): 36_871}, hash_bytes=64),
    Shape("two-ranks", {PageId(0, 0): 12_288, PageId(0, 1): 12_288}, ranks_apart=True),
    Shape("two-groups", {PageId(0, 0): 24_576, PageId(1, 0): 4_100}),
    Shape("large", {PageId(0, 0): 131_072}),
)
"""Sizes below, at and above the device's block, and off its grid."""

SHAPES: Final = tuple(replace(shape, pool=pool) for pool in POOLS for shape in _KINDS)

SHAPE_BY_NAME: Final = {shape.name: shape for shape in SHAPES}


class PageKey(NamedTuple):
    """Names one page in the whole test."""

    shape: str
    hash: BlockHash
    page: PageId

    @property
    def block(self) -> BlockKey:
        """The page's block."""
        return BlockKey(self.shape, self.hash)


class BlockKey(NamedTuple):
    """Names one block in the whole test."""

    shape: str
    hash: BlockHash


@dataclass(frozen=True)
class PutPlan:
    """One put: pages of consecutive blocks below `parent`."""

    shape: Shape
    parent: BlockHash | None
    blocks: tuple[BlockHash, ...]
    pages: tuple[PageId, ...]
    reach: Reach

    def page_keys(self) -> list[PageKey]:
        """The pages in the order of the wire: block after block."""
        return [PageKey(self.shape.name, block, page) for block in self.blocks for page in self.pages]


def payload(key: PageKey) -> bytes:
    """The only right bytes of this page; no two keys share a 32-byte prefix."""
    group, shard = key.page.group, key.page.shard
    name = f"{key.shape}/{group}/{shard}/".encode() + key.hash
    return blake3(name).digest(length=SHAPE_BY_NAME[key.shape].page_bytes[key.page])


def decide_chain(
    rng: random.Random, shape: Shape, parents: Sequence[BlockHash], longest_blocks: int = 16
) -> tuple[PutPlan, ...]:
    """The puts of a new chain: mostly below one of `parents`, else from the root.

    One put for the whole chain, or one for each page where ranks store apart.
    """
    parent = rng.choice(parents) if parents and rng.random() < 0.8 else None
    blocks = tuple(BlockHash(rng.randbytes(shape.hash_bytes)) for _ in range(rng.randint(1, longest_blocks)))
    reach = rng.choices((Reach.DRAM, Reach.SEALED, Reach.FLUSHED), weights=(5, 1, 4))[0]
    parts = [(page,) for page in shape.pages] if shape.ranks_apart else [shape.pages]
    return tuple(PutPlan(shape, parent, blocks, pages, reach) for pages in parts)


def decide_twin(plans: Sequence[PutPlan], rng: random.Random) -> tuple[PutPlan, ...]:
    """Sometimes, for a chain from the root: the same hashes in another pool, whose bytes are others."""
    if plans[0].parent is not None or rng.random() < 0.5:
        return ()
    pool = rng.choice([pool for pool in POOLS if pool != plans[0].shape.pool])
    return tuple(replace(plan, shape=replace(plan.shape, pool=pool)) for plan in plans)
