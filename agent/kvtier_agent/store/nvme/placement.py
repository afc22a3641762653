"""Where runs go: open segments, space reserved behind chains that may grow, holes. Pure.

A chain's run is followed by a reservation; its next run goes there, so that a chain that grows over many turns, beside
many others, still lies in one piece. Reservations shrink as space does, and the least recently used lapse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from ..arena_format import PAGE
from .segments import HEADER_BYTES, MAX_RUN_BYTES, MAX_RUN_PAGES, RunSizes, SegmentId, run_header_bytes, summary_bytes

if TYPE_CHECKING:
    from .devices import Device

STRIPE_BYTES: Final = 16 << 20
"""So much of a chain lies on one device before the next takes over, where there are several."""
MAX_RESERVE_BYTES: Final = 8 << 20
"""And three eighths of a unit at most."""
MIN_RESERVE_BYTES: Final = 128 << 10
_FIRST_FACTOR: Final = 16
"""A new chain's reservation is so many times its first run: most chains never grow."""
_LAYOUTS: Final = 8
"""Room for so many layouts is kept in a summary beyond those that a segment has."""
_WORTH_FILLING_BYTES: Final = 1 << 20
"""A rest of a segment that is smaller than this, and than the run, is left for smaller runs."""

_STRIPE_ENDS: Final = 4096
_MAX_OPEN_BYTES: Final = 2 << 30
_GROWN: Final = 4096

Tail = tuple[int, int]
"""Segment number and payload offset of a page at a chain's end."""


class SegmentState(Enum):
    """What may be done with a segment."""

    MAKING = auto()
    OPEN = auto()
    SEALED = auto()
    """Read, or freed whole."""
    GONE = auto()


class Segment:
    """One segment, in one unit of one device."""

    __slots__ = (
        "copies", "device", "entries", "holes", "id", "io", "layouts", "live_reservations", "mark", "number",
        "owed_entries", "reserved_bytes", "runs", "sealed_on_media", "staged", "state", "top", "unit", "unit_bytes",
    )  # fmt: skip

    def __init__(self, number: int, device: Device, unit: int, id_: SegmentId, unit_bytes: int) -> None:
        self.number, self.device, self.unit, self.id, self.unit_bytes = number, device, unit, id_, unit_bytes
        self.state = SegmentState.MAKING
        self.top = HEADER_BYTES
        """Behind the last run and reservation."""
        self.entries = 0
        self.owed_entries = 0
        """That reservations are likely to need in the summary."""
        self.layouts: set[bytes] = set()
        self.runs: list[tuple[int, int]] = []
        """Offset and header bytes of those that are written."""
        self.holes: list[tuple[int, int]] = []
        """Start and stop of what lapsed reservations left."""
        self.live_reservations = 0
        self.reserved_bytes = 0
        self.io = 0
        """Jobs on it that are queued or under way."""
        self.mark = 0
        """The device's written_mark of its last run."""
        self.copies: dict[Device, int] = {}
        """Where pages were moved out of it, by the written_mark of the last one: flushed before its unit is freed."""
        self.sealed_on_media = False
        self.staged = True
        """False: found on its device, and not in the index yet."""

    @property
    def hole_bytes(self) -> int:
        """That lapsed reservations left."""
        return sum(stop - start for start, stop in self.holes)

    def room(self, pages: int, layout: bytes) -> int:
        """Bytes left at the top for a run of so many pages, the summary's place kept free."""
        return self.limit(pages, layout) - self.top

    def limit(self, pages: int, layout: bytes) -> int:
        """Where the summary would begin with so many pages more."""
        layouts = len(self.layouts | {layout}) + _LAYOUTS
        return self.unit_bytes - summary_bytes(self.entries + self.owed_entries + pages, layouts)


@dataclass(eq=False)
class Reservation:
    """Space behind a chain's end."""

    segment: Segment
    start: int
    stop: int
    owed: int
    stripe_left: int
    striped: bool
    tails: list[Tail] = field(default_factory=list)


class Want(NamedTuple):
    """A run that has to be placed: pages of one chain, in order."""

    sizes: RunSizes
    layout: bytes
    parents: Sequence[Tail]
    """Places of the pages that it hangs on, as far as they lie on nvme."""

    def bytes_from(self, start: int) -> int:
        """Of the pages from there on, as far as they are to lie together; the next runs."""
        return min(STRIPE_BYTES, self.sizes.payload_bytes(start, len(self.sizes)))


class Spot(NamedTuple):
    """Where the first `pages` of a wanted run go."""

    segment: Segment
    offset: int
    pages: int
    run_bytes: int
    stripe_left: int
    """Of the chain on this device, this run not counted."""
    reservation: Reservation | None
    grows: bool
    striped: bool = False
    follows: int = 0
    """Bytes of the pages that are to be placed next."""


class Grown(NamedTuple):
    """A chain that was written to lately."""

    layout: bytes
    last: bytes
    """Hash of its last block."""
    keys: frozenset[tuple[int, int]]
    """Group and shard of its pages."""
    runs: int
    """That it was written in, as far as is known."""
    pages: int
    """Of its last run."""


class Budget(NamedTuple):
    """What a pool may spend on reservations now."""

    free_bytes: int
    """Of its quota, and of the devices."""
    quota_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """Of all its reservations together: at most half of what is free, and nothing at 95 % full."""
        spare = self.free_bytes - self.quota_bytes // 20
        return max(0, min(self.free_bytes // 2, spare))

    @property
    def is_tight(self) -> bool:
        """Whether no hole is to be left unused."""
        return self.free_bytes < self.quota_bytes // 4


class Space:
    """One pool's open segments and reservations."""

    def __init__(self) -> None:
        self.open: dict[str, Segment] = {}
        """By device, the one that runs are put on top of."""
        self._reservations: OrderedDict[int, Reservation] = OrderedDict()
        """By identity, least recently used first."""
        self._by_tail: dict[Tail, Reservation] = {}
        self.reserved_bytes = 0
        self.segments: dict[int, Segment] = {}
        """All that the pool has, by number."""
        self._turn = 0
        self.grown: OrderedDict[tuple[bytes, bytes], Grown] = OrderedDict()
        """Chains that were written to, by layout and last hash, the latest last."""
        self._stripe_ends: OrderedDict[Tail, None] = OrderedDict()
        """Where chains go on on another device; the latest ones."""

    def open_segments(self) -> list[Segment]:
        """Those that are not sealed."""
        return [it for it in self.segments.values() if it.state is SegmentState.OPEN]

    def grew(self, layout: bytes, parent: bytes, last: bytes, keys: frozenset[tuple[int, int]], pages: int) -> None:
        """A chain that ended at `parent` ends at `last` now."""
        before = self.grown.pop((layout, parent), None)
        runs = before.runs + 1 if before is not None else 1
        if before is not None:
            keys |= before.keys
        self.grown[layout, last] = Grown(layout, last, keys, runs, pages)
        while len(self.grown) > _GROWN:
            self.grown.popitem(last=False)

    def find_reserved(self, want: Want, budget: Budget) -> Spot | None:
        """A place behind the run's chain, or in a hole: any run's where space is short, else only a new chain's."""
        spot = self.find_behind(want)
        if spot is None and (budget.is_tight or self._parent_segment(want) is None):
            spot = self._in_hole(want, tight=budget.is_tight)
        return spot

    def device_for(self, want: Want, devices: Sequence[Device]) -> Device | None:
        """Whose turn it is where nothing is reserved: along the stripes of the run's chain, else the next one's."""
        if not devices:
            return None
        parent = self._parent_segment(want)
        if parent is None or len(devices) == 1:
            self._turn += 1
            return devices[self._turn % len(devices)]
        names = [it.name for it in devices]
        at = names.index(parent.device.name) if parent.device.name in names else 0
        return devices[(at + any(tail in self._stripe_ends for tail in want.parents)) % len(devices)]

    def on_top(self, want: Want, device: Device, budget: Budget, *, striped: bool) -> Spot | None:
        """A place on the device's open segment; None: another one has to be made. `striped`: over several devices.

        Where space is ample, a chain rather begins in a fresh segment than where it could hardly grow.
        """
        segment = self.open.get(device.name)
        if segment is None or segment.state is not SegmentState.OPEN:
            return None
        room = segment.room(min(len(want.sizes), MAX_RUN_PAGES), want.layout)
        pages = want.sizes.fit(room)
        if pages == 0 or (pages < len(want.sizes) and room < _WORTH_FILLING_BYTES):
            return None
        size = want.sizes.run_bytes(pages)
        rest = STRIPE_BYTES - size if striped else STRIPE_BYTES
        follows = want.bytes_from(pages)
        ahead = min(self._ahead(segment, size, budget, grows=bool(want.parents)), rest)
        cramped = room < size + follows or (not follows and room - size < ahead // 2)
        if segment.top > HEADER_BYTES and cramped and not budget.is_tight:
            return None
        return Spot(segment, segment.top, pages, size, rest, None, bool(want.parents), striped, follows)

    def place(self, spot: Spot, want: Want, budget: Budget, tails: Sequence[int]) -> None:
        """Count a run at its spot, and reserve what is behind it.

        `tails`: payload offsets of its last block's pages.
        """
        segment, stop = spot.segment, spot.offset + spot.run_bytes
        segment.entries += spot.pages
        segment.layouts.add(want.layout)
        old_stop = stop
        if spot.reservation is not None:
            old_stop = spot.reservation.stop
            self._remove(spot.reservation)
        segment.top = max(segment.top, stop)
        stop_at = self._reserve_until(spot, stop, old_stop, budget)
        segment.top = max(segment.top, stop_at)
        if stop_at > stop:
            page_bytes = max(PAGE, spot.run_bytes // spot.pages)
            made = Reservation(
                segment, stop, stop_at, (stop_at - stop) // page_bytes + 1, spot.stripe_left, spot.striped
            )
            self._add(made, [(segment.number, at) for at in tails])
        elif old_stop > stop:
            self._leave_hole(segment, stop, old_stop)
        if spot.stripe_left <= 0:
            self._end_stripe((segment.number, at) for at in tails)
        self.shrink_to(budget.reserve_bytes)

    def lapse_all(self, segment: Segment) -> None:
        """Reserve nothing more in the segment."""
        for it in [it for it in self._reservations.values() if it.segment is segment]:
            self._lapse(it)

    def retire_top(self, segment: Segment) -> None:
        """No run is put on top of the segment any more: what is left there is a hole."""
        entries = (segment.unit_bytes - segment.top) * max(1, segment.entries) // segment.top + 1
        end = segment.limit(entries, b"") // PAGE * PAGE
        if end - segment.top >= MIN_RESERVE_BYTES:
            segment.owed_entries += entries
            segment.holes.append((segment.top, end))
            segment.top = end

    def lapse_oldest(self, at_least: int) -> None:
        """Give back so many bytes of what is reserved, the least recently used first."""
        self.shrink_to(self.reserved_bytes - at_least)

    def forget(self, segment: Segment) -> None:
        """The segment takes no more runs."""
        self.lapse_all(segment)
        segment.holes.clear()
        for name, it in list(self.open.items()):
            if it is segment:
                del self.open[name]

    def find_behind(self, want: Want) -> Spot | None:
        """A place in what is reserved behind the run's chain."""
        reservation = next((found for tail in want.parents if (found := self._by_tail.get(tail)) is not None), None)
        if reservation is None or reservation.stripe_left <= 0:
            return None
        segment = reservation.segment
        more = max(0, min(len(want.sizes), MAX_RUN_PAGES) - reservation.owed)
        limit = segment.limit(more, want.layout)
        if limit < segment.top:
            return None
        end = reservation.stop
        if end == segment.top:  # nothing is behind it: it goes on as far as the segment does
            end = max(end, limit // PAGE * PAGE)
        pages = want.sizes.fit(end - reservation.start)
        if pages == 0 or (pages < len(want.sizes) and end - reservation.start < _WORTH_FILLING_BYTES):
            return None
        size = want.sizes.run_bytes(pages)
        rest = reservation.stripe_left - size if reservation.striped else STRIPE_BYTES
        follows = want.bytes_from(pages)
        return Spot(segment, reservation.start, pages, size, rest, reservation, True, reservation.striped, follows)

    def _in_hole(self, want: Want, *, tight: bool) -> Spot | None:
        """The smallest hole that takes the run whole; where space is short, else the largest that takes a good part."""
        pages = want.sizes.fit(2 * MAX_RUN_BYTES)
        size = want.sizes.run_bytes(pages)
        holes = [
            (stop - start, segment, index)
            for segment in self.open_segments()
            if segment.holes and segment.limit(max(0, pages - segment.owed_entries), want.layout) >= segment.top
            for index, (start, stop) in enumerate(segment.holes)
        ]
        whole = [it for it in holes if it[0] >= size]
        if whole:
            _, segment, index = min(whole, key=lambda it: it[0])
        elif tight and holes:
            largest, segment, index = max(holes, key=lambda it: it[0])
            pages = want.sizes.fit(largest)
            if pages == 0 or largest < min(size // 4, _WORTH_FILLING_BYTES):
                return None
            size = want.sizes.run_bytes(pages)
        else:
            return None
        start, stop = segment.holes.pop(index)
        if stop - start - size >= 2 * PAGE:
            segment.holes.append((start + size, stop))
        segment.owed_entries = max(0, segment.owed_entries - pages)
        return Spot(segment, start, pages, size, STRIPE_BYTES, None, grows=bool(want.parents))

    def _parent_segment(self, want: Want) -> Segment | None:
        return next((found for number, _ in want.parents if (found := self.segments.get(number)) is not None), None)

    def _end_stripe(self, tails: Iterable[Tail]) -> None:
        for tail in tails:
            self._stripe_ends[tail] = None
        while len(self._stripe_ends) > _STRIPE_ENDS:
            self._stripe_ends.popitem(last=False)

    def _reserve_until(self, spot: Spot, stop: int, old_stop: int, budget: Budget) -> int:
        """Where the space reserved behind a run that ends at `stop` ends itself."""
        if spot.stripe_left <= 0:
            return stop
        segment = spot.segment
        ahead = self._ahead(spot.segment, spot.run_bytes, budget, grows=spot.grows)
        headers = run_header_bytes(MAX_RUN_PAGES) if spot.follows else 0
        wanted = min(max(ahead, spot.follows + headers), spot.stripe_left) // PAGE * PAGE
        at_top = max(stop, old_stop) == segment.top
        if not at_top:
            return old_stop if old_stop - stop >= 2 * PAGE and wanted > 0 else stop
        page_bytes = max(PAGE, spot.run_bytes // spot.pages)
        room = segment.unit_bytes - summary_bytes(
            segment.entries + segment.owed_entries + wanted // page_bytes + 1, len(segment.layouts) + _LAYOUTS
        )
        end = min(stop + wanted, room // PAGE * PAGE)
        return max(end, old_stop) if end - stop >= MIN_RESERVE_BYTES else max(stop, old_stop)

    def _ahead(self, segment: Segment, size: int, budget: Budget, *, grows: bool) -> int:
        """Bytes to reserve behind a run of this size."""
        most = min(MAX_RESERVE_BYTES, segment.unit_bytes * 3 // 8)
        wanted = most if grows else min(most, _FIRST_FACTOR * size)
        return max(0, min(wanted, budget.reserve_bytes - self.reserved_bytes))

    def shrink_to(self, limit: int) -> None:
        """Reserve so many bytes at most, the least recently used lapse first."""
        while self.reserved_bytes > limit and self._reservations:
            self._lapse(next(iter(self._reservations.values())))

    def _add(self, reservation: Reservation, tails: Iterable[Tail]) -> None:
        self._reservations[id(reservation)] = reservation
        reservation.tails = list(tails)
        for tail in reservation.tails:
            self._by_tail[tail] = reservation
        reservation.segment.live_reservations += 1
        reservation.segment.owed_entries += reservation.owed
        reservation.segment.reserved_bytes += reservation.stop - reservation.start
        self.reserved_bytes += reservation.stop - reservation.start

    def _remove(self, reservation: Reservation) -> None:
        del self._reservations[id(reservation)]
        for tail in reservation.tails:
            self._by_tail.pop(tail, None)
        reservation.segment.live_reservations -= 1
        reservation.segment.owed_entries -= reservation.owed
        reservation.segment.reserved_bytes -= reservation.stop - reservation.start
        self.reserved_bytes -= reservation.stop - reservation.start

    def _lapse(self, reservation: Reservation) -> None:
        self._remove(reservation)
        self._leave_hole(reservation.segment, reservation.start, reservation.stop)

    def _leave_hole(self, segment: Segment, start: int, stop: int) -> None:
        if stop == segment.top and self.open.get(segment.device.name) is segment:
            segment.top = start
        elif stop - start >= 2 * PAGE:
            segment.holes.append((start, stop))


def open_limit(quota_units: int, unit_bytes: int, devices: int) -> int:
    """How many open segments a pool may have: each is read whole after a crash."""
    return max(2 * devices, min(_MAX_OPEN_BYTES // unit_bytes, quota_units // 2))
