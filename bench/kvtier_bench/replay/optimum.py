"""The offline optimum: what could be hit by whoever knew the whole trace.

Belady's rule (L. A. Belady, 1966) among the leaves, with bypass: a new block that is asked for later than every leaf
that could make room for it is not stored. A child is never asked for before its parent, so the rule never wants to
give up an ancestor first.
"""

from __future__ import annotations

import heapq
from typing import Final

from .trace import Trace

_NEVER: Final = 1 << 62


def optimum_blocks(trace: Trace, capacity: int) -> int:
    """Blocks found, over all requests, by the best cache of `capacity` blocks."""
    return _Optimum(capacity).run(trace)


class _Optimum:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._due: dict[int, int] = {}
        """Of what is there: the number of the next request that asks for it."""
        self._children: dict[int, int] = {}
        self._parent: dict[int, int | None] = {}
        self._latest: list[tuple[int, int]] = []
        """A heap of (-due, block); entries that are out of date are passed over."""

    def run(self, trace: Trace) -> int:
        found = 0
        for chain, dues in zip(trace.requests, _next_requests(trace), strict=True):
            known = next((place for place, block in enumerate(chain) if block not in self._due), len(chain))
            found += known
            for block, due in zip(chain[:known], dues, strict=False):
                self._due[block] = due
                self._offer(block)
            self._store(chain, dues, known)
        return found

    def _store(self, chain: list[int], dues: list[int], known: int) -> None:
        for place in range(known, len(chain)):
            above = chain[place - 1] if place else None
            if len(self._due) >= self._capacity and not self._make_room(dues[place], above):
                return
            self._due[chain[place]] = dues[place]
            self._children[chain[place]] = 0
            self._parent[chain[place]] = above
            if above is not None:
                self._children[above] += 1
            self._offer(chain[place])

    def _offer(self, block: int) -> None:
        if self._children[block] == 0:
            heapq.heappush(self._latest, (-self._due[block], block))

    def _make_room(self, due: int, above: int | None) -> bool:
        """Whether a leaf went, one that is asked for later than `due` and is not the new block's parent."""
        spared: list[tuple[int, int]] = []
        went = False
        while self._latest and not went:
            latest, block = heapq.heappop(self._latest)
            if self._due.get(block) != -latest or self._children[block]:
                continue
            if block == above:
                spared.append((latest, block))
                continue
            if due == _NEVER or -latest <= due:
                spared.append((latest, block))
                break
            self._drop(block)
            went = True
        for entry in spared:
            heapq.heappush(self._latest, entry)
        return went

    def _drop(self, block: int) -> None:
        del self._due[block], self._children[block]
        above = self._parent.pop(block)
        if above is not None:
            self._children[above] -= 1
            self._offer(above)


def _next_requests(trace: Trace) -> list[list[int]]:
    """For each block of each request, the number of the next request that asks for it, or _NEVER."""
    soonest: dict[int, int] = {}
    dues: list[list[int]] = []
    for number in range(len(trace.requests) - 1, -1, -1):
        chain = trace.requests[number]
        dues.append([soonest.get(block, _NEVER) for block in chain])
        soonest.update(dict.fromkeys(chain, number))
    dues.reverse()
    return dues
