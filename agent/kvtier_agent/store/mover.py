"""A copy mover: copies staging into the arena, checksums it, and makes, scans and frees chunk files."""

from __future__ import annotations

import argparse
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kvtier_client.protocol.places import unpack_places

from . import deletions, jobs
from .arena_format import Geometry, SlotFields, parse_chunk_name
from .checksums import payload_digest
from .chunkmap import ChunkMap, ChunkMaps
from .errors import ChunkDamaged, StoreError
from .moverproc import Reply, run_mover
from .refs import Ref, decode_refs, encode_ref

_COPY_BYTES: Final = 512 << 10
"""Copied in one call: what is hashed afterwards is still in the processor's cache."""
_COPY_PAGES: Final = 256
"""Of one call; the kernel takes 1,024."""


class CopyMover:
    """Carries out jobs on one arena. Blocking, one thread."""

    takes_fd: tuple[type, ...] = (jobs.CopyIn,)

    def __init__(self, arena: Path) -> None:
        self._arena = arena
        self._chunks = ChunkMaps(arena)
        self._deleted: dict[str, deletions.Deleted] = {}
        """By pool, for the scans of a recovery."""
        self._work: dict[type, Callable[[Any, int | None, Reply], None]] = {
            jobs.CopyIn: self._copy_in,
            jobs.CreateChunk: self._create_chunk,
            jobs.DropChunk: self._drop_chunk,
            jobs.ScanChunk: self._scan_chunk,
            jobs.NoteDeleted: self._note_deleted,
            jobs.NoteExpired: self._note_expired,
            jobs.CompactNotes: self._compact_notes,
            jobs.ForgetNotes: self._forget_notes,
            jobs.Touch: self._touch,
        }

    def carry_out(self, job: jobs.Job, fd: int | None, reply: Reply) -> None:
        """See moverproc.Carrier."""
        self._work[type(job)](job, fd, reply)

    def forget(self, pool_uid: str, chunk: int) -> None:
        """Unmap a chunk that is gone."""
        del pool_uid
        self._chunks.forget(chunk)

    def _copy_in(self, job: jobs.CopyIn, fd: int | None, reply: Reply) -> None:
        """Read the staging rather than map it: a hole read through a mapping would be charged to the store."""
        if fd is None:
            raise StoreError("no staging came with the job")
        refs = decode_refs(job.refs)
        maps = {chunk: self._chunks.get(job.pool, chunk) for chunk in {ref.chunk for ref in refs}}
        for ref in refs:
            maps[ref.chunk].begin(ref.slot, ref.generation)
        digests: list[bytes] = []
        for start, stop in _contiguous(refs, job.offsets):
            batch = refs[start:stop]
            pieces = [maps[ref.chunk].payload(ref.slot, ref.size) for ref in batch]
            _read_all(fd, pieces, job.offsets[start])
            found = [payload_digest(piece) for piece in pieces]
            digests += found
            for ref, digest in zip(batch, found, strict=True):
                chunk = maps[ref.chunk]
                chunk.clear_padding(ref)
                chunk.commit(ref, job.begun, digest)
        reply(jobs.CopiedIn(job.id, b"".join(digests)))

    def _create_chunk(self, job: jobs.CreateChunk, _: int | None, reply: Reply) -> None:
        self._chunks.create(job.pool, job.chunk, Geometry(job.slot_bytes, job.slots, job.payload_at, job.file_bytes))
        reply(jobs.Done(job.id))

    def _drop_chunk(self, job: jobs.DropChunk, _: int | None, reply: Reply) -> None:
        self._chunks.drop(job.pool, job.chunk)
        reply(jobs.Done(job.id))

    def _scan_chunk(self, job: jobs.ScanChunk, _: int | None, reply: Reply) -> None:
        if job.pool not in self._deleted:
            self._deleted[job.pool] = deletions.read(self._arena / job.pool)
        try:
            chunk = self._chunks.get(job.pool, job.chunk)
        except ChunkDamaged as error:
            reply(jobs.ChunkScanned(job.id, 0, 0, 0, 0, b"", b"", 0, fault=str(error)))
            return
        for start in range(0, chunk.cut.slots, jobs.SCAN_PART):
            stop = min(start + jobs.SCAN_PART, chunk.cut.slots)
            generations, refs, damaged = _scan_slots(chunk, job.chunk, range(start, stop), self._deleted[job.pool])
            more = stop < chunk.cut.slots
            reply(jobs.ChunkScanned(job.id, *chunk.cut, generations, refs, damaged, more=more))

    def _note_deleted(self, job: jobs.NoteDeleted, _: int | None, reply: Reply) -> None:
        end = deletions.append(self._arena / job.pool, job.at, job.layout, job.hashes, job.cutoff)
        reply(jobs.Done(job.id, end))

    def _note_expired(self, job: jobs.NoteExpired, _: int | None, reply: Reply) -> None:
        end = deletions.append_expired(self._arena / job.pool, job.at, job.before, job.cutoff)
        reply(jobs.Done(job.id, end))

    def _compact_notes(self, job: jobs.CompactNotes, _: int | None, reply: Reply) -> None:
        end = deletions.compact(self._arena / job.pool, self._committed(job.pool), job.filling_since)
        reply(jobs.Done(job.id, end))

    def _forget_notes(self, job: jobs.ForgetNotes, _: int | None, reply: Reply) -> None:
        deletions.reset(self._arena / job.pool)
        self._deleted.pop(job.pool, None)
        reply(jobs.Done(job.id))

    def _committed(self, pool_uid: str) -> Iterator[SlotFields]:
        """What a successor would find in the pool's slots. Other movers may fill them: nothing is written."""
        for file in (self._arena / pool_uid).iterdir():
            chunk_id = parse_chunk_name(file.name)
            if chunk_id is None:
                continue
            try:
                chunk = self._chunks.get(pool_uid, chunk_id)
            except (FileNotFoundError, ChunkDamaged):  # given back meanwhile
                continue
            for slot in range(chunk.cut.slots):
                _, fields, _ = chunk.scan(slot)
                if fields is not None:
                    yield fields

    def _touch(self, job: jobs.Touch, _: int | None, reply: Reply) -> None:
        now = job.now.to_bytes(4, "little")
        for chunk_id, _, _, generation_offset, generation, _ in unpack_places(job.places):
            try:
                self._chunks.get(job.pool, chunk_id).touch(generation_offset, generation, now)
            except FileNotFoundError:  # given back meanwhile
                continue
        reply(jobs.Done(job.id))


def _scan_slots(chunk: ChunkMap, chunk_id: int, slots: range, deleted: deletions.Deleted) -> tuple[bytes, bytes, int]:
    """Generations of these slots, references of those that hold a page, and how many were damaged."""
    generations, refs, damaged = bytearray(), bytearray(), 0
    for slot in slots:
        generation, fields, last_use = chunk.scan(slot)
        generations += struct.pack("<Q", generation)
        if fields is None:
            continue
        if deletions.is_void(deleted, fields):
            chunk.uncommit(slot)
            continue
        if payload_digest(chunk.payload(slot, fields.size)) != fields.digest:
            chunk.uncommit(slot)
            damaged += 1
            continue
        refs += encode_ref(
            Ref(
                fields.layout,
                fields.hash,
                fields.parent,
                fields.digest,
                generation,
                chunk.cut.payload_offset(slot),
                fields.stored_at,
                fields.size,
                fields.group,
                fields.trailing,
                chunk_id,
                slot,
                fields.depth,
                last_use,
                0,
                fields.shard,
            )
        )
    return bytes(generations), bytes(refs), damaged


def _contiguous(refs: Sequence[Ref], offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of pages that lie one behind the other in the staging, each short enough for one call."""
    start, size = 0, 0
    for index, ref in enumerate(refs):
        if index > start and (
            offsets[index] != offsets[index - 1] + refs[index - 1].size
            or size + ref.size > _COPY_BYTES
            or index - start == _COPY_PAGES
        ):
            yield start, index
            start, size = index, 0
        size += ref.size
    if refs:
        yield start, len(refs)


def _read_all(fd: int, pieces: list[memoryview], offset: int) -> None:
    """Fill `pieces` from `offset` on. Raises OSError, StoreError where the staging ends before."""
    left = sum(len(piece) for piece in pieces)
    while left:
        done = os.preadv(fd, pieces, offset)
        if done == 0:
            raise StoreError("the staging ends before the page")
        left, offset = left - done, offset + done
        while left and done:
            if done < len(pieces[0]):
                pieces = [pieces[0][done:], *pieces[1:]]
                break
            done -= len(pieces[0])
            pieces = pieces[1:]


def _make(arguments: argparse.Namespace) -> CopyMover:
    return CopyMover(arguments.arena)


def main() -> int:
    """Entry point of a copy mover's process."""
    return run_mover(jobs.ToMover, _make)


if __name__ == "__main__":
    sys.exit(main())
