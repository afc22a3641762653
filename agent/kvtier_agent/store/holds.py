"""Holds: readers' leases on pages, by id.

A hold belongs to a pod: every connection of it may release the hold, and it lapses by itself, or when
the pod's last connection closes. Pure but for the pins that it keeps in the index.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from .index import Index, Page

HOLD_S: Final = 30.0


class Holds:
    """All holds on one pool's pages."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._next_id = secrets.randbits(48) << 8
        """From a random start: an id of an earlier store releases nothing here."""
        self._holds: dict[int, tuple[str, float, Sequence[Page]]] = {}
        self._by_pod: defaultdict[str, set[int]] = defaultdict(set)

    def take(self, pod: str, pages: Sequence[Page], now: float) -> int:
        """Make a hold of pages that the caller has pinned; it takes these pins over."""
        self._next_id += 1
        self._holds[self._next_id] = (pod, now + HOLD_S, pages)
        self._by_pod[pod].add(self._next_id)
        return self._next_id

    def release(self, pod: str, hold_id: int) -> None:
        """Give the pod's hold back; without effect if it has none of this id."""
        held = self._holds.get(hold_id)
        if held is None or held[0] != pod:
            return
        del self._holds[hold_id]
        self._by_pod[pod].discard(hold_id)
        if not self._by_pod[pod]:
            del self._by_pod[pod]
        for page in held[2]:
            self._index.unpin(page)

    def release_pod(self, pod: str) -> None:
        """The pod's last connection is gone."""
        for hold_id in list(self._by_pod.get(pod, ())):
            self.release(pod, hold_id)

    def expire(self, now: float) -> None:
        """Release what has lapsed. Holds lapse in the order they were taken."""
        for hold_id, (pod, until, _) in list(self._holds.items()):
            if until > now:
                return
            self.release(pod, hold_id)

    def __len__(self) -> int:
        return len(self._holds)
