"""What the index process asks of movers, and what they answer.

Frames of the wire protocol over a socket pair, one at a time. A mover answers every job with exactly
one result that has no `more`; scans answer in parts.
"""

from __future__ import annotations

from typing import Final

import msgspec

SCAN_PART: Final = 4096
"""Entries in one part of a scan, so that a frame stays below its limit."""


class PageRef(msgspec.Struct, frozen=True, array_like=True):
    """A page and the slot that takes it or has it."""

    hash: bytes
    parent: bytes
    """b"" where the block starts its chain."""
    group: int
    shard: int
    size: int
    chunk: int
    slot: int
    generation: int


class CopyIn(msgspec.Struct, frozen=True, tag="copy_in"):
    """Copy pages from the staging whose descriptor lies beside into slots, and commit these."""

    id: int
    pool: str
    layout: bytes
    pages: list[PageRef]
    offsets: list[int]
    """Of each page in the staging."""


class ReadRun(msgspec.Struct, frozen=True, tag="read_run"):
    """Read pages that lie one behind the other in a segment into slots, check them, commit what is good."""

    id: int
    pool: str
    layout: bytes
    path: str
    direct: bool
    sequence: int
    offset: int
    pages: list[PageRef]
    checksums: list[bytes]


class WriteRun(msgspec.Struct, frozen=True, tag="write_run"):
    """Write committed slots as one run at `offset` of a segment."""

    id: int
    pool: str
    layout: bytes
    path: str
    direct: bool
    sequence: int
    offset: int
    pages: list[PageRef]


class CreateChunk(msgspec.Struct, frozen=True, tag="create_chunk"):
    """Make a chunk file with all its memory."""

    id: int
    pool: str
    chunk: int
    slot_bytes: int
    slots: int
    payload_at: int
    file_bytes: int


class DropChunk(msgspec.Struct, frozen=True, tag="drop_chunk"):
    """Invalidate a chunk, free its memory under all who map it, and unlink it."""

    id: int
    pool: str
    chunk: int


class ScanChunk(msgspec.Struct, frozen=True, tag="scan_chunk"):
    """Read a chunk's headers."""

    id: int
    pool: str
    chunk: int


class ProbeDevice(msgspec.Struct, frozen=True, tag="probe_device"):
    """Check or make the FORMAT file, try direct I/O, list the segments."""

    id: int
    path: str


class CreateSegment(msgspec.Struct, frozen=True, tag="create_segment"):
    """Make a segment file with its header, durably."""

    id: int
    path: str
    pool: str
    sequence: int
    segment_bytes: int


class SealSegment(msgspec.Struct, frozen=True, tag="seal_segment"):
    """Write the summary of a segment behind its last run, cut the file there, and flush it."""

    id: int
    path: str
    pool: str
    sequence: int


class SyncSegment(msgspec.Struct, frozen=True, tag="sync_segment"):
    """Flush a segment to its device."""

    id: int
    path: str


class ScanSegment(msgspec.Struct, frozen=True, tag="scan_segment"):
    """Read what a segment holds, and cut off what a crash left behind its last run."""

    id: int
    path: str
    pool: str
    sequence: int


class Unlink(msgspec.Struct, frozen=True, tag="unlink"):
    """Remove segment files durably, and the pool's folder if that empties it."""

    id: int
    folder: str
    names: list[str]


class ForgetChunk(msgspec.Struct, frozen=True, tag="forget_chunk"):
    """Unmap a chunk that is gone. Not answered."""

    pool: str
    chunk: int


class SlotFound(msgspec.Struct, frozen=True, array_like=True):
    """A committed slot."""

    slot: int
    size: int
    last_use_ms: int
    layout: bytes
    hash: bytes
    parent: bytes
    group: int
    shard: int


class EntryFound(msgspec.Struct, frozen=True, array_like=True):
    """A page in a segment."""

    layout: bytes
    hash: bytes
    parent: bytes
    group: int
    shard: int
    size: int
    offset: int
    checksum: bytes


class SegmentFound(msgspec.Struct, frozen=True, array_like=True):
    """A segment file."""

    pool: str
    sequence: int
    file_bytes: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The mover has its lock, and so no predecessor's I/O is in flight."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The job is done."""

    id: int
    value: int = 0
    """Of SealSegment: the file's bytes, 0 if it was left as it is."""
    more: bool = False


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job failed; its slots are uncommitted."""

    id: int
    errno: int
    message: str
    refused: bool = False
    """What lies there is of another format, and was left alone."""
    more: bool = False


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A ReadRun or WriteRun is done, but for the pages in `bad`, whose checksum did not match."""

    id: int
    bad: list[int]
    """Indices. A run with one is not written."""
    checksums: list[bytes] = []
    """Of a written run, on the medium."""
    more: bool = False


class ChunkScanned(msgspec.Struct, frozen=True, tag="chunk_scanned"):
    """Part of a chunk's headers."""

    id: int
    slot_bytes: int
    slots: int
    payload_at: int
    file_bytes: int
    generations: list[int]
    """Of the slots from the first of this part on."""
    found: list[SlotFound]
    more: bool = False


class SegmentScanned(msgspec.Struct, frozen=True, tag="segment_scanned"):
    """Part of a segment's pages."""

    id: int
    found: list[EntryFound]
    file_bytes: int
    """After the cut."""
    faults: int
    """Damaged headers and torn-in-the-middle runs, not counting the tail that a crash leaves."""
    usable: bool
    """False: the segment has no intact header, and nothing in it is believed."""
    more: bool = False


class DeviceProbed(msgspec.Struct, frozen=True, tag="device_probed"):
    """Part of a device's segments."""

    id: int
    direct: bool
    segments: list[SegmentFound]
    more: bool = False


Job = (
    CopyIn
    | ReadRun
    | WriteRun
    | CreateChunk
    | DropChunk
    | ScanChunk
    | ProbeDevice
    | CreateSegment
    | SealSegment
    | SyncSegment
    | ScanSegment
    | Unlink
)
ToMover = Job | ForgetChunk
Result = Done | Failed | Moved | ChunkScanned | SegmentScanned | DeviceProbed
FromMover = Ready | Result
