"""A workload of conversations that grow. Pure."""

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
