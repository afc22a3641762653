"""A workload of conversations that grow, and what a policy simulated in memory makes of it. Pure."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

TURNS: Final = 32
BLOCKS_PER_TURN: Final = 8
NEW_SHARE: Final = 0.05
"""Of requests that begin a conversation."""
RECENT_SHARE: Final = 0.7
"""Of the others that go on with one of the RECENT latest; the rest draw from all."""
RECENT: Final = 16
ALIVE: Final = 160
"""Conversations that may go on; the one that has been silent longest ends when another begins."""


class Request(NamedTuple):
    """A prompt: the first `blocks` blocks of the conversation's chain."""

    conversation: int
    blocks: int


@dataclass
class Conversations:
    """Requests, the same for the same seed."""

    seed: int = 1
    _turns: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _begun: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next(self) -> Request:
        """The next one. A conversation's chain grows with each, up to TURNS turns."""
        if not self._turns or self._random.random() < NEW_SHARE:
            chosen = self._begin()
        else:
            alive = list(self._turns)
            chosen = self._random.choice(alive[-RECENT:] if self._random.random() < RECENT_SHARE else alive)
        turn = self._turns.pop(chosen) + 1
        if turn < TURNS:
            self._turns[chosen] = turn
        return Request(chosen, turn * BLOCKS_PER_TURN)

    def _begin(self) -> int:
        if len(self._turns) >= ALIVE:
            self._turns.popitem(last=False)
        self._begun += 1
        self._turns[self._begun] = 0
        return self._begun


class LeafFirstLru:
    """What a cache of `capacity` blocks holds that evicts the last block of the chain used least recently."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, int] = OrderedDict()
        self._used = 0

    def request(self, request: Request) -> int:
        """How many of the prompt's leading blocks are there; all of it is there afterwards, as far as it fits."""
        hit = min(self._held.pop(request.conversation, 0), request.blocks)
        blocks = min(request.blocks, self._capacity)
        self._held[request.conversation] = blocks
        self._used += blocks - hit
        while self._used > self._capacity:
            coldest, length = next(iter(self._held.items()))
            cut = min(length, self._used - self._capacity)
            self._used -= cut
            if cut == length:
                del self._held[coldest]
            else:
                self._held[coldest] = length - cut
        return hit
