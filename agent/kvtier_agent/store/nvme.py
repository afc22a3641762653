"""The NVMe tier's books: devices, their segments, and what lies in these.

Pure accounting, for the index process; files are touched by movers only (`media`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .arena_format import PAGE, round_up
from .segments import SEGMENT_HEADER_BYTES, segment_name, summary_bytes

if TYPE_CHECKING:
    from .index import Page


class SegmentState(Enum):
    """What may be done with a segment."""

    OPEN = auto()
    SEALED = auto()
    """Read or freed whole."""
    GONE = auto()


class Device:
    """One device of the configuration."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.direct = False
        self.error = ""
        """Why the device is closed, or ""."""
        self.segment_bytes = 0
        """Of all segments on it."""


class Segment:
    """One segment file."""

    __slots__ = (
        "broken", "device", "entries", "file_bytes", "io", "last_use", "lock", "offset", "pages", "pool_uid",
        "sequence", "state", "synced", "written",
    )  # fmt: skip

    def __init__(self, device: Device, pool_uid: str, sequence: int, file_bytes: int) -> None:
        self.device, self.pool_uid, self.sequence, self.file_bytes = device, pool_uid, sequence, file_bytes
        self.state = SegmentState.OPEN
        self.offset = SEGMENT_HEADER_BYTES
        """Where the next run goes."""
        self.entries = 0
        self.written = 0
        """Runs that end here or before are on the medium."""
        self.synced = 0
        """Runs that end here or before are flushed."""
        self.pages: set[Page] = set()
        self.last_use = 0
        self.broken = False
        """A run failed: no further one may be written."""
        self.io = 0
        """Jobs on the file that are queued or under way."""
        self.lock = asyncio.Lock()
        """Held by the run that is being written: at most one, so that a kill tears at most the last."""

    @property
    def path(self) -> Path:
        """Of the segment's file."""
        return self.device.path / self.pool_uid / segment_name(self.sequence)

    def room(self, pages: int) -> int:
        """Bytes left for a run of `pages` pages, with the summary's place kept free."""
        return self.file_bytes - summary_bytes(self.entries + pages) - self.offset


class Location(NamedTuple):
    """Where a page lies on nvme."""

    segment: Segment
    offset: int
    checksum: bytes

    def end(self, size: int) -> int:
        """Where a contiguous next page would begin."""
        return self.offset + round_up(size, PAGE)


class Nvme:
    """All segments of all pools."""

    def __init__(self, capacity_bytes: int, devices: list[Device], mean_page_bytes: int = 0) -> None:
        """`mean_page_bytes`: what pages count at least, on average, against quotas and capacity."""
        self.capacity_bytes, self.mean_page_bytes = capacity_bytes, mean_page_bytes
        self.devices = devices
        self.segments: dict[int, Segment] = {}
        self._pool_bytes: defaultdict[str, int] = defaultdict(int)
        self.total_bytes = 0
        self._next_sequence = 0

    def start_sequence(self, at_least: int) -> None:
        """Number segments from here on. Numbers rise over all pools, devices and restarts."""
        self._next_sequence = max(self._next_sequence, at_least, max(self.segments, default=0) + 1)

    def open_devices(self) -> list[Device]:
        """Devices in use, emptiest first."""
        return sorted((device for device in self.devices if not device.error), key=lambda it: it.segment_bytes)

    def pool_bytes(self, pool_uid: str) -> int:
        """Of the pool's segment files."""
        return self._pool_bytes[pool_uid]

    def pool_segments(self, pool_uid: str) -> Iterator[Segment]:
        """The pool's segments that are not gone."""
        return (segment for segment in self.segments.values() if segment.pool_uid == pool_uid)

    def reserve(self, device: Device, pool_uid: str, file_bytes: int) -> Segment:
        """Count a segment that is about to be made."""
        segment = Segment(device, pool_uid, self._next_sequence, file_bytes)
        self._next_sequence += 1
        self.adopt(segment)
        return segment

    def adopt(self, segment: Segment) -> None:
        """Count a segment."""
        self.segments[segment.sequence] = segment
        self._count(segment, segment.file_bytes)

    def resize(self, segment: Segment, file_bytes: int) -> None:
        """The file was cut."""
        if segment.sequence in self.segments:
            self._count(segment, file_bytes - segment.file_bytes)
            segment.file_bytes = file_bytes

    def discard(self, segment: Segment) -> None:
        """The file is gone, durably."""
        if self.segments.pop(segment.sequence, None) is not None:
            self._count(segment, -segment.file_bytes)
        segment.state = SegmentState.GONE

    def _count(self, segment: Segment, file_bytes: int) -> None:
        self._pool_bytes[segment.pool_uid] += file_bytes
        self.total_bytes += file_bytes
        segment.device.segment_bytes += file_bytes
