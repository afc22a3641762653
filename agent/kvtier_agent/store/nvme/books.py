"""The books of the NVMe tier: devices, segments by number, space by pool, serials. Pure accounting."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from ..aio import Tasks
from .placement import Segment, SegmentState, Space

if TYPE_CHECKING:
    from .devices import Device

_SERIAL_GAP: Final = 1 << 32
"""Left above all that was found: serials of runs since then are not read before their pools are."""


class Books:
    """What the parts of the tier share. Event loop thread only."""

    def __init__(self, capacity_bytes: int, devices: list[Device], mean_page_bytes: int = 0) -> None:
        """`mean_page_bytes`: pages count so much at least, on average; 0: as much as they are."""
        self.capacity_bytes, self.devices, self.mean_page_bytes = capacity_bytes, devices, mean_page_bytes
        self.segments: dict[int, Segment] = {}
        """By the index's number."""
        self.tasks = Tasks()
        self.total_bytes = 0
        self._spaces: defaultdict[str, Space] = defaultdict(Space)
        self._used: defaultdict[str, int] = defaultdict(int)
        self._number = 0
        self._serial = time.time_ns() // 1000

    def space(self, pool_uid: str) -> Space:
        """The pool's open segments and reservations."""
        return self._spaces[pool_uid]

    def used_bytes(self, pool_uid: str) -> int:
        """Of the pool's units."""
        return self._used[pool_uid]

    def next_number(self) -> int:
        """Of a segment in the index; a newer segment has a higher one."""
        self._number += 1
        return self._number

    def next_serial(self) -> int:
        """Rises over all pools, devices and restarts: of segments (their sequence) and runs."""
        self._serial += 1
        return self._serial

    @property
    def last_serial(self) -> int:
        """The latest that was given out: what is deleted now was written under it at most."""
        return self._serial

    def serials_from(self, found: int) -> None:
        """Go on above all that was found on the devices.

        That the clock does by itself, unless it was set back: serials rise by less than one in a microsecond. So they
        are above those on a device that is away, too.
        """
        if found >= self._serial:
            self._serial = found + _SERIAL_GAP

    def adopt(self, segment: Segment) -> None:
        """Count a segment."""
        self.segments[segment.number] = segment
        segment.device.segments[segment.unit] = segment
        self._spaces[segment.id.pool_uid].segments[segment.number] = segment
        self._used[segment.id.pool_uid] += segment.unit_bytes
        self.total_bytes += segment.unit_bytes

    def discard(self, segment: Segment) -> None:
        """Its unit is free, durably."""
        if self.segments.pop(segment.number, None) is None:
            return
        segment.state = SegmentState.GONE
        space = self._spaces[segment.id.pool_uid]
        space.forget(segment)
        space.segments.pop(segment.number, None)
        segment.device.give_unit(segment.unit)
        self._used[segment.id.pool_uid] -= segment.unit_bytes
        self.total_bytes -= segment.unit_bytes

    def oldest_serials(self) -> dict[str, int]:
        """By pool, a serial below that of any page that may lie on a device.

        A segment's sequence is below its pages' serials.
        """
        oldest: dict[str, int] = {}
        for segment in self.segments.values():
            uid, sequence, _ = segment.id
            oldest[uid] = min(oldest.get(uid, sequence), sequence)
        return oldest

    def unit_bytes(self) -> int:
        """Of the devices' units, the largest."""
        return max((it.unit_bytes for it in self.devices), default=0)
