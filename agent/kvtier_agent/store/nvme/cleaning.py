"""What the cleaner moves: pure decisions over places and worths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ..arena_format import PAGE, round_up

MERGE_RUNS: Final = 2
"""A chain may lie in so many pieces ..."""
MERGE_WINDOW: Final = 16 << 20
"""... for each so many bytes of it."""
MAX_GAP: Final = 64 << 10
KEEP_SHARE: Final = 1 / 3
"""Of a unit that is freed: moving more costs more writing than the client's writes pay for."""

Place = tuple[int, int, int]
"""Segment, offset and size."""


class Piece(NamedTuple):
    """Pages start..stop of a chain that lie together."""

    start: int
    stop: int
    bytes: int


def is_fragmented(runs: int, chain_bytes: int) -> bool:
    """Whether a chain lies in more pieces than it should."""
    return runs > MERGE_RUNS * max(1, -(-chain_bytes // MERGE_WINDOW))


def pieces_of(places: Sequence[Place | None]) -> list[Piece]:
    """How a chain's pages lie together; those that are not on nvme end a piece."""
    pieces: list[Piece] = []
    end: tuple[int, int] | None = None
    for index, place in enumerate(places):
        if place is None:
            end = None
            continue
        segment, offset, size = place
        padded = round_up(size, PAGE)
        if end is not None and end[0] == segment and 0 <= offset - end[1] <= MAX_GAP:
            last = pieces[-1]
            pieces[-1] = Piece(last.start, index + 1, last.bytes + padded)
        else:
            pieces.append(Piece(index, index + 1, padded))
        end = segment, offset + padded
    return pieces


def decide_merge(places: Sequence[Place | None], budget_bytes: int) -> list[tuple[int, int]]:
    """Page ranges to be written anew, each as one piece, so that the chain has no more pieces than it may.

    Neighbours are joined, the smallest first, which is the least writing. Nothing beyond the budget.
    """
    pieces = pieces_of(places)
    allowed = MERGE_RUNS * max(1, -(-sum(it.bytes for it in pieces) // MERGE_WINDOW))
    groups = [[it] for it in pieces]
    while len(groups) > allowed:
        joins = [
            (sum(it.bytes for it in left + right), index)
            for index, (left, right) in enumerate(pairwise(groups))
            if left[-1].stop == right[0].start
        ]
        joins = [it for it in joins if it[0] <= MERGE_WINDOW]
        if not joins:
            break
        _, index = min(joins)
        groups[index : index + 2] = [groups[index] + groups[index + 1]]
    chosen = []
    for group in sorted((it for it in groups if len(it) > 1), key=lambda it: sum(p.bytes for p in it) / len(it)):
        size = sum(it.bytes for it in group)
        if size <= budget_bytes:
            budget_bytes -= size
            chosen.append((group[0].start, group[-1].stop))
    return sorted(chosen)


def decide_keep(sizes: Sequence[int], worths: Sequence[float], mean_worth: float, limit_bytes: int) -> list[int]:
    """Indices of a unit's pages that are moved rather than dropped: worth more than the pool's mean, the best first."""
    kept, used = [], 0
    better = [index for index, worth in enumerate(worths) if worth > mean_worth]
    for index in sorted(better, key=worths.__getitem__, reverse=True):
        size = round_up(sizes[index], PAGE)
        if used + size > limit_bytes:
            break
        kept.append(index)
        used += size
    return sorted(kept)
