"""What the store has promised: which pages were acknowledged, how far, and what a restart may have cost.

A page that was sent but never acknowledged is known here too: it may be served or not, but only with its own bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvtier_client.protocol.messages import PageId, Reach, Tier

from tests.chaos.workload import SHAPE_BY_NAME, BlockHash, BlockKey, PageKey, PutPlan, Shape, payload

DEEPEST_BLOCKS = 40
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


class Ledger:
    """Promises by page, and the tree of blocks. Thread-safe; listings are snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: dict[BlockKey, BlockHash | None] = {}
        self._depths: dict[BlockKey, int] = {}
        self._promises: dict[PageKey, Promise] = {}

    def expect(self, plan: PutPlan) -> None:
        """Know the blocks of a put that is about to be sent."""
        with self._lock:
            parent = plan.parent
            for block in plan.blocks:
                key = BlockKey(plan.shape.name, block)
                self._parents[key] = parent
                self._depths[key] = 1 if parent is None else self._depths[BlockKey(plan.shape.name, parent)] + 1
                parent = block

    def acknowledge(self, plan: PutPlan, reach: Reach, *, all_new: bool = True) -> None:
        """Every page of the put got this far. Of pages that were known, nvme may have the only copy."""
        with self._lock:
            self._promises |= dict.fromkeys(plan.page_keys(), Promise(reach, in_slot=all_new))

    def lose_arena(self) -> None:
        """The node's memory is gone: only what was flushed is still promised, and from nvme."""
        with self._lock:
            flushed = [key for key, promise in self._promises.items() if promise.reach is Reach.FLUSHED]
            self._promises = dict.fromkeys(flushed, Promise(Reach.FLUSHED, in_slot=False))

    def forgive(self, keys: set[PageKey]) -> None:
        """Stop expecting pages whose loss was counted."""
        with self._lock:
            for key in keys:
                self._promises.pop(key, None)

    def promise(self, key: PageKey) -> Promise | None:
        """What is promised for this page; None: it may be there or not."""
        with self._lock:
            return self._promises.get(key)

    def promised_pages(self) -> int:
        """How many pages must be there now."""
        with self._lock:
            return len(self._promises)

    def written_bytes(self) -> int:
        """Payload bytes of all that was ever sent."""
        with self._lock:
            return sum(sum(SHAPE_BY_NAME[key.shape].page_bytes.values()) for key in self._parents)

    def parents_for(self, shape: Shape) -> list[BlockHash]:
        """Blocks that are promised whole, up from the root, and may be continued."""
        with self._lock:
            whole: set[BlockHash] = set()
            for key, parent in self._parents.items():  # parents stand before their children
                own = (PageKey(shape.name, key.hash, page) in self._promises for page in shape.pages)
                if key.shape == shape.name and (parent is None or parent in whole) and all(own):
                    whole.add(key.hash)
            return [block for block in whole if self._depths[BlockKey(shape.name, block)] < DEEPEST_BLOCKS]

    def chains(self, shape: Shape) -> list[list[BlockHash]]:
        """Every leaf's chain from the root: together they touch each block that was ever sent."""
        with self._lock:
            own = {key.hash: parent for key, parent in self._parents.items() if key.shape == shape.name}
        leaves = own.keys() - set(own.values())
        return [list(reversed(list(_ancestry(own, leaf)))) for leaf in own if leaf in leaves]


def _ancestry(parents: dict[BlockHash, BlockHash | None], leaf: BlockHash) -> Iterator[BlockHash]:
    block: BlockHash | None = leaf
    while block is not None:
        yield block
        block = parents[block]


def judge_chain(
    ledger: Ledger,
    shape: Shape,
    chain: Sequence[BlockHash],
    page: PageId,
    matches: Sequence[bool],
    tiers: Sequence[Tier],
) -> Verdict:
    """The verdict on one reading of one page per block; `matches` and `tiers` cover the served blocks."""
    verdict = Verdict()
    for index, block in enumerate(chain):
        key = PageKey(shape.name, block, page)
        promise = ledger.promise(key)
        if index < len(matches):
            if matches[index]:
                verdict.served += 1
            else:
                verdict.wrong.append(f"{shape.name} {block.hex()[:16]} {page} from {tiers[index]}")
        if promise is None:
            continue
        absent = index >= len(matches)
        slot_lost = promise.in_slot and (absent or tiers[index] is not Tier.DRAM)
        if slot_lost or (absent and promise.reach is not Reach.FLUSHED):
            verdict.lost_dram.add(key)
        if absent and promise.reach is Reach.FLUSHED:
            verdict.lost_flushed.add(key)
    return verdict


def is_right(key: PageKey, served: memoryview) -> bool:
    """Whether these are the page's own bytes, all of them and no more."""
    return bytes(served) == payload(key)
