"""What the store has promised: which pages were acknowledged, how far, and what a restart may have cost.

A page that was sent but never acknowledged is known here too: it may be served or not, but only with its own bytes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import PageId, Reach, Tier

from tests.chaos.workload import SHAPE_BY_NAME, SHAPES, BlockHash, BlockKey, PageKey, PutPlan, Shape, payload

DEEPEST_BLOCKS: Final = 40
"""Chains are not continued beyond this depth, so that reading all leaves stays cheap."""


@dataclass(frozen=True)
class Promise:
    """How an acknowledged page must be found."""

    reach: Reach
    in_slot: bool
    """It must be found in the arena: this put stored it there, and the arena was not lost since."""


@dataclass
class Verdict:
    """The findings of one reading. `served` counts reads that were compared and right."""

    served: int = 0
    lost_dram: set[PageKey] = field(default_factory=set)
    lost_flushed: set[PageKey] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Take the findings of `other` in."""
        self.served += other.served
        self.lost_dram |= other.lost_dram
        self.lost_flushed |= other.lost_flushed
        self.wrong += other.wrong


class Stretch(NamedTuple):
    """A chain from the root, and where the blocks begin that are to be judged on it."""

    shape: Shape
    chain: list[BlockHash]
    start: int

    @property
    def blocks(self) -> list[BlockKey]:
        """The blocks that are judged."""
        return [BlockKey(self.shape.name, block) for block in self.chain[self.start :]]

    @property
    def keys(self) -> list[PageKey]:
        """The pages that are judged."""
        blocks = self.chain[self.start :]
        return [PageKey(self.shape.name, block, page) for block in blocks for page in self.shape.pages]

    @property
    def pages(self) -> int:
        """How many pages are judged."""
        return (len(self.chain) - self.start) * len(self.shape.pages)


class Ledger:
    """Promises by page, and the tree of blocks. Thread-safe; listings are snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: dict[BlockKey, BlockHash | None] = {}
        self._depths: dict[BlockKey, int] = {}
        self._promises: dict[PageKey, Promise] = {}
        self._whole: dict[str, dict[BlockHash, None]] = {shape.name: {} for shape in SHAPES}
        self._doomed: set[BlockKey] = set()
        """Someone has begun to delete them, or what is above them."""
        self._deleted: set[BlockKey] = set()
        """Of these, those whose deletion was acknowledged."""
        self._fresh: set[BlockKey] = set()
        self._open: dict[str, list[BlockHash]] = {shape.name: [] for shape in SHAPES}

    def expect(self, plan: PutPlan) -> None:
        """Know the blocks of a put that is about to be sent."""
        with self._lock:
            parent = plan.parent
            for block in plan.blocks:
                key = BlockKey(plan.shape.name, block)
                self._parents[key] = parent
                self._fresh.add(key)
                above = None if parent is None else BlockKey(plan.shape.name, parent)
                for fate in (self._doomed, self._deleted):
                    if above in fate:
                        fate.add(key)
                self._depths[key] = 1 if parent is None else self._depths[BlockKey(plan.shape.name, parent)] + 1
                parent = block

    def acknowledge(self, plan: PutPlan, reach: Reach, *, all_new: bool = True) -> None:
        """Every page of the put got this far. Of pages that were known, nvme may have the only copy."""
        with self._lock:
            alive = [key for key in plan.page_keys() if key.block not in self._doomed]
            self._promises |= dict.fromkeys(alive, Promise(reach, in_slot=all_new))
            self._note_whole(plan.shape.name, plan.blocks)

    def expect_delete(self, shape: Shape, block: BlockHash) -> set[BlockKey]:
        """Promise no more what is about to be deleted, and continue nothing of it; returns all that goes."""
        with self._lock:
            below = self._below(BlockKey(shape.name, block))
            self._doomed |= below
            for page in [page for page in self._promises if page.block in below]:
                del self._promises[page]
            for gone in below:
                self._whole[shape.name].pop(gone.hash, None)
            self._open[shape.name] = [it for it in self._open[shape.name] if it in self._whole[shape.name]]
            return below

    def acknowledge_delete(self, shape: Shape, block: BlockHash) -> set[BlockKey]:
        """This block and all below it are gone for good; returns them."""
        with self._lock:
            below = self._below(BlockKey(shape.name, block))
            self._doomed |= below
            self._deleted |= below
            return below

    def is_doomed(self, shape: Shape, block: BlockHash) -> bool:
        """Whether someone has begun to delete the block."""
        return BlockKey(shape.name, block) in self._doomed

    def is_deleted(self, key: PageKey) -> bool:
        """Whether the page must not be served."""
        return key.block in self._deleted

    def keep_only(self, keys: Collection[PageKey]) -> None:
        """Only these are promised, as flushed and from nvme: the node's memory is gone, and perhaps more."""
        with self._lock:
            self._promises = dict.fromkeys(keys, Promise(Reach.FLUSHED, in_slot=False))
            self._find_whole()

    def fork(self, keys: Collection[PageKey], deleted: Collection[BlockKey] | None = None) -> Ledger:
        """A ledger of its own that knows the same blocks, of which only these pages are promised, as flushed.

        `deleted`: what must not be served there; None: the same as here.
        """
        other = Ledger()
        with self._lock:
            other._parents, other._depths = self._parents.copy(), self._depths.copy()
            other._deleted = set(self._deleted if deleted is None else deleted)
            other._doomed = other._deleted.copy()
        other.keep_only(keys)
        return other

    def lose_arena(self) -> None:
        """The node's memory is gone: only what was flushed is still promised, and from nvme."""
        self.keep_only(self.flushed_pages())

    def forgive(self, keys: set[PageKey]) -> None:
        """Stop expecting pages whose loss was counted."""
        with self._lock:
            for key in keys:
                self._promises.pop(key, None)
            if keys:
                self._find_whole()

    def promise(self, key: PageKey) -> Promise | None:
        """What is promised for this page; None: it may be there or not."""
        with self._lock:
            return self._promises.get(key)

    def flushed_pages(self) -> list[PageKey]:
        """The pages that were acknowledged as flushed."""
        with self._lock:
            return [key for key, promise in self._promises.items() if promise.reach is Reach.FLUSHED]

    def promised_pages(self) -> int:
        """How many pages must be there now."""
        with self._lock:
            return len(self._promises)

    def written_bytes(self) -> int:
        """Payload bytes of all that was ever sent."""
        with self._lock:
            return sum(sum(SHAPE_BY_NAME[key.shape].page_bytes.values()) for key in self._parents)

    def parents_for(self, shape: Shape) -> Sequence[BlockHash]:
        """Blocks that are promised whole, up from the root, and may be continued. Grows later; not to be changed."""
        return self._open[shape.name]

    def is_whole(self, shape: Shape, block: BlockHash) -> bool:
        """Whether the block is promised whole, up from the root."""
        return block in self._whole[shape.name]

    def chain(self, shape: Shape, block: BlockHash) -> list[BlockHash]:
        """The blocks from the root to this one."""
        chain = [block]
        with self._lock:
            while (parent := self._parents[BlockKey(shape.name, chain[-1])]) is not None:
                chain.append(parent)
        return chain[::-1]

    def chains(self, shape: Shape) -> list[list[BlockHash]]:
        """Every leaf's chain from the root: together they touch each block that was ever sent."""
        with self._lock:
            own = {key.hash: parent for key, parent in self._parents.items() if key.shape == shape.name}
        leaves = own.keys() - set(own.values())
        return [list(reversed(list(_ancestry(own, leaf)))) for leaf in own if leaf in leaves]

    def take_fresh(self) -> set[BlockKey]:
        """The blocks that were sent since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, set()
            return fresh

    def stretches(self) -> list[Stretch]:
        """All chains of all layouts, so cut that every block that was ever sent is judged on exactly one."""
        found = []
        for shape in SHAPES:
            seen: set[BlockHash] = set()
            for chain in self.chains(shape):
                start = next(index for index, block in enumerate(chain) if block not in seen)
                seen.update(chain[start:])
                found.append(Stretch(shape, chain, start))
        return found

    def deleted(self) -> set[BlockKey]:
        """The blocks that must not be served."""
        with self._lock:
            return self._deleted.copy()

    def _below(self, top: BlockKey) -> set[BlockKey]:
        below = {top}
        for key, parent in self._parents.items():  # parents stand before their children
            if parent is not None and BlockKey(key.shape, parent) in below:
                below.add(key)
        return below

    def _note_whole(self, shape: str, blocks: Iterable[BlockHash]) -> None:
        whole, pages = self._whole[shape], SHAPE_BY_NAME[shape].pages
        for block in blocks:
            key = BlockKey(shape, block)
            parent = self._parents[key]
            own = (PageKey(shape, block, page) in self._promises for page in pages)
            if block not in whole and (parent is None or parent in whole) and all(own):
                whole[block] = None
                if self._depths[key] < DEEPEST_BLOCKS:
                    self._open[shape].append(block)

    def _find_whole(self) -> None:
        for shape in SHAPES:
            self._whole[shape.name], self._open[shape.name] = {}, []
        for key in self._parents:  # parents stand before their children
            self._note_whole(key.shape, [key.hash])


def _ancestry(parents: dict[BlockHash, BlockHash | None], leaf: BlockHash) -> Iterator[BlockHash]:
    block: BlockHash | None = leaf
    while block is not None:
        yield block
        block = parents[block]


def draw(stretches: Sequence[Stretch], least_pages: int, rng: random.Random) -> list[Stretch]:
    """Stretches at random that have so many pages together, or all: every page is as likely as any other."""
    drawn: list[Stretch] = []
    pages = 0
    for stretch in rng.sample(stretches, len(stretches)):
        if pages >= least_pages:
            break
        drawn.append(stretch)
        pages += stretch.pages
    return drawn


def judge_chain(
    ledger: Ledger, stretch: Stretch, page: PageId, matches: Sequence[bool], tiers: Sequence[Tier]
) -> Verdict:
    """The verdict on one reading of one page per block; `tiers` covers the chain's served blocks.

    `matches` begins where the stretch does.
    """
    verdict = Verdict()
    for index, block in enumerate(stretch.chain[stretch.start :]):
        key = PageKey(stretch.shape.name, block, page)
        promise = ledger.promise(key)
        absent = index >= len(matches)
        if not absent and ledger.is_deleted(key):
            verdict.wrong.append(f"{key.shape} {block.hex()[:16]} {page} was deleted and came back")
        elif not absent and matches[index]:
            verdict.served += 1
        elif not absent:
            tier = tiers[stretch.start + index]
            verdict.wrong.append(f"{key.shape} {block.hex()[:16]} {page} from {tier}")
        if promise is None:
            continue
        slot_lost = promise.in_slot and (absent or tiers[stretch.start + index] is not Tier.DRAM)
        if slot_lost or (absent and promise.reach is not Reach.FLUSHED):
            verdict.lost_dram.add(key)
        if absent and promise.reach is Reach.FLUSHED:
            verdict.lost_flushed.add(key)
    return verdict


def is_right(key: PageKey, served: memoryview) -> bool:
    """Whether these are the page's own bytes, all of them and no more."""
    return bytes(served) == payload(key)
