"""What the index process asks of copy movers, and what they answer.

Frames of the wire protocol over a socket pair. A mover answers every job with exactly one result that has no
`more`; scans answer in parts. Pages are packed references (`refs`).
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

SCAN_PART: Final = 1024
"""Slots in one part of a scan: the index takes a part in without keeping requests waiting."""


class AnyJob(Protocol):
    """What every job has."""

    @property
    def id(self) -> int:
        """Of the job, unique among those of its movers."""


class AnyResult(Protocol):
    """What every result has."""

    @property
    def id(self) -> int:
        """Of the job."""

    @property
    def more(self) -> bool:
        """Whether another part follows."""


class CopyIn(msgspec.Struct, frozen=True, tag="copy_in"):
    """Copy pages from the staging whose descriptor lies beside into slots, and commit these. Answered by CopiedIn."""

    id: int
    pool: str
    refs: bytes
    offsets: list[int]
    """Of each page in the staging."""
    begun: int
    """CLOCK_MONOTONIC in nanoseconds, when the slots were taken."""


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
    """Read a chunk's headers, check its payloads, and uncommit what is void or damaged. Answered by ChunkScanned."""

    id: int
    pool: str
    chunk: int


class NoteDeleted(msgspec.Struct, frozen=True, tag="note_deleted"):
    """Note durably, as far as memory is, that blocks are deleted. Answered by Done, with where the notes end."""

    id: int
    pool: str
    at: int | None
    """Where the notes end now; None: look."""
    layout: bytes
    hashes: list[bytes]
    cutoff: int
    """Slots begun then or before are void."""


class NoteExpired(msgspec.Struct, frozen=True, tag="note_expired"):
    """Note that all that was stored before a time is gone. Answered by Done, with where the notes end."""

    id: int
    pool: str
    at: int | None
    """As NoteDeleted's."""
    before: int
    """Unix seconds."""
    cutoff: int
    """Slots of such blocks that were begun then or before are void."""


class CompactNotes(msgspec.Struct, frozen=True, tag="compact_notes"):
    """Keep the notes that make a slot void, or may yet. Answered by Done, with where the notes end."""

    id: int
    pool: str
    filling_since: int
    """CLOCK_MONOTONIC in nanoseconds: no slot that is being filled was taken before."""


class ForgetNotes(msgspec.Struct, frozen=True, tag="forget_notes"):
    """Forget the notes: no slot is committed that they make void, or being filled."""

    id: int
    pool: str


class Touch(msgspec.Struct, frozen=True, tag="touch"):
    """Note the last use of the pages at these places (`places.PLACE` records) in their slots' headers."""

    id: int
    pool: str
    places: bytes
    now: int
    """Unix seconds."""


class ForgetChunk(msgspec.Struct, frozen=True, tag="forget_chunk"):
    """Unmap a chunk that is gone. Not answered."""

    pool: str
    chunk: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The mover has its lock, and so no predecessor's I/O is in flight."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The job is done."""

    id: int
    value: int = 0
    more: bool = False


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job failed; its slots are uncommitted."""

    id: int
    errno: int
    message: str
    refused: bool = False
    """What lies there is of another format, and was left alone."""
    more: bool = False


class CopiedIn(msgspec.Struct, frozen=True, tag="copied_in"):
    """The pages are committed."""

    id: int
    digests: bytes
    """Of the payloads, 16 bytes each."""
    more: bool = False


class ChunkScanned(msgspec.Struct, frozen=True, tag="chunk_scanned"):
    """Part of a chunk's headers."""

    id: int
    slot_bytes: int
    slots: int
    payload_at: int
    file_bytes: int
    generations: bytes
    """64 bits for each slot of this part."""
    refs: bytes
    """Of committed slots; `segment` is the slot's last use."""
    damaged: int
    """Slots whose payload did not match."""
    fault: str = ""
    """Why the chunk cannot be read at all: free it."""
    more: bool = False


Job = CopyIn | CreateChunk | DropChunk | ScanChunk | NoteDeleted | NoteExpired | CompactNotes | ForgetNotes | Touch
ToMover = Job | ForgetChunk
FromMover = Ready | Done | Failed | CopiedIn | ChunkScanned
