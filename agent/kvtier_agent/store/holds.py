"""Holds: readers' leases on pages, by id.

A hold belongs to a pod: every connection of it may use or release the hold, and it lapses by itself, or when
the pod's last connection closes. What is pinned, the index's own holds keep.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from typing import Final, NamedTuple

from kvtier_index import Hold

HOLD_S: Final = 30.0


class _Held(NamedTuple):
    pod: str
    until: float
    pins: list[Hold]


class Holds:
    """All holds on one pool's pages."""

    def __init__(self) -> None:
        self._next_id = secrets.randbits(48) << 8
        """From a random start: an id of an earlier store releases nothing here."""
        self._holds: dict[int, _Held] = {}
        self._by_pod: defaultdict[str, set[int]] = defaultdict(set)

    def take(self, pod: str, pins: Hold, now: float) -> int:
        """Make a hold, and take `pins` over."""
        self._next_id += 1
        self._holds[self._next_id] = _Held(pod, now + HOLD_S, [pins])
        self._by_pod[pod].add(self._next_id)
        return self._next_id

    def extend(self, pod: str, hold_id: int, pins: Hold) -> bool:
        """Whether the pod has this hold, which then takes `pins` over; its end stays."""
        held = self._holds.get(hold_id)
        if held is None or held.pod != pod:
            return False
        held.pins.append(pins)
        return True

    def release(self, pod: str, hold_id: int) -> None:
        """Give the pod's hold back; without effect if it has none of this id."""
        held = self._holds.get(hold_id)
        if held is None or held.pod != pod:
            return
        del self._holds[hold_id]
        self._by_pod[pod].discard(hold_id)
        if not self._by_pod[pod]:
            del self._by_pod[pod]
        for pins in held.pins:
            pins.release()

    def release_pod(self, pod: str) -> None:
        """The pod's last connection is gone."""
        for hold_id in list(self._by_pod.get(pod, ())):
            self.release(pod, hold_id)

    def expire(self, now: float) -> None:
        """Release what has lapsed. Holds lapse in the order they were taken."""
        while self._holds:
            hold_id, held = next(iter(self._holds.items()))
            if held.until > now:
                return
            self.release(held.pod, hold_id)

    def __len__(self) -> int:
        return len(self._holds)
