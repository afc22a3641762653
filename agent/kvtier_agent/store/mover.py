"""A mover: a process that copies, checksums and does device I/O for the index process.

It serves one job at a time, dies with its parent, and holds its lock file's lock while it lives, so
that whoever gets the lock knows that none of its I/O is in flight.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvtier_client.protocol.frames import FrameDecoder, encode_frame

from . import jobs
from .arena_format import PAGE, Geometry, round_up
from .chunkmap import ChunkMaps
from .errors import FormatRefused, LockHeld
from .locks import FileLock
from .log import log
from .media import (
    Scan,
    aligned,
    create_segment,
    ensure_format,
    list_segments,
    opened,
    probe_direct,
    read_all,
    run_entries_at,
    seal_segment,
    unlink_segments,
    write_all,
)
from .segments import Entry, encode_run_header, run_bytes

_PR_SET_PDEATHSIG: Final = 1
_RECEIVE_BYTES: Final = 1 << 20
_LOCK_WAIT_S: Final = 60.0


class Mover:
    """Carries out jobs on one arena. Blocking, one thread."""

    def __init__(self, arena: Path) -> None:
        self._chunks = ChunkMaps(arena)
        self._work: dict[type, Callable[[Any, int | None], list[jobs.Result]]] = {
            jobs.CopyIn: self._copy_in,
            jobs.ReadRun: self._read_run,
            jobs.WriteRun: self._write_run,
            jobs.CreateChunk: self._create_chunk,
            jobs.DropChunk: self._drop_chunk,
            jobs.ScanChunk: self._scan_chunk,
            jobs.ProbeDevice: self._probe_device,
            jobs.CreateSegment: self._create_segment,
            jobs.SealSegment: self._seal_segment,
            jobs.SyncSegment: self._sync_segment,
            jobs.ScanSegment: self._scan_segment,
            jobs.Unlink: self._unlink,
        }

    def carry_out(self, job: jobs.Job, fd: int | None) -> list[jobs.Result]:
        """Do the job; what fails is a result, not an exception."""
        try:
            return self._work[type(job)](job, fd)
        except FormatRefused as error:
            return [jobs.Failed(job.id, 0, str(error), refused=True)]
        except OSError as error:
            return [jobs.Failed(job.id, error.errno or 0, str(error))]

    def forget(self, message: jobs.ForgetChunk) -> None:
        """Unmap a chunk that is gone."""
        self._chunks.forget(message.chunk)

    def _copy_in(self, job: jobs.CopyIn, fd: int | None) -> list[jobs.Result]:
        """Read the staging rather than map it: a hole read through a mapping would be charged to the store."""
        if fd is None:
            return [jobs.Failed(job.id, 0, "no staging came with the job")]
        for page, offset in zip(job.pages, job.offsets, strict=True):
            chunk = self._chunks.get(job.pool, page.chunk)
            chunk.begin(page.slot, page.generation)
            if not read_all(fd, [chunk.payload(page.slot, page.size)], offset):
                return [jobs.Failed(job.id, 0, "the staging ends before the page")]
            chunk.clear_padding(page)
            chunk.commit(job.layout, page, chunk.checksum(job.layout, page, page.generation))
        return [jobs.Done(job.id)]

    def _read_run(self, job: jobs.ReadRun, _: int | None) -> list[jobs.Result]:
        pieces = []
        for page in job.pages:
            chunk = self._chunks.get(job.pool, page.chunk)
            chunk.begin(page.slot, page.generation)
            pieces.append(chunk.payload(page.slot, round_up(page.size, PAGE)))
        with opened(job.path, os.O_RDONLY, direct=job.direct) as fd:
            complete = read_all(fd, pieces, job.offset)
        bad = []
        for index, (page, checksum) in enumerate(zip(job.pages, job.checksums, strict=True)):
            chunk = self._chunks.get(job.pool, page.chunk)
            if not complete or chunk.checksum(job.layout, page, job.sequence) != checksum:
                bad.append(index)
                continue
            chunk.commit(job.layout, page, chunk.checksum(job.layout, page, page.generation))
        return [jobs.Moved(job.id, bad)]

    def _write_run(self, job: jobs.WriteRun, _: int | None) -> list[jobs.Result]:
        pieces, entries, bad = [], [], []
        sizes = [page.size for page in job.pages]
        for index, (page, offset) in enumerate(zip(job.pages, run_entries_at(job.offset, sizes), strict=True)):
            chunk = self._chunks.get(job.pool, page.chunk)
            if not chunk.is_intact(job.layout, page):
                bad.append(index)
                continue
            checksum = chunk.checksum(job.layout, page, job.sequence)
            entries.append(
                Entry(job.layout, page.hash, page.parent, page.group, page.shard, page.size, offset, checksum)
            )
            pieces.append(chunk.payload(page.slot, round_up(page.size, PAGE)))
        if not bad:
            head = aligned(encode_run_header(job.sequence, job.offset, entries, run_bytes(sizes)))
            with opened(job.path, os.O_WRONLY, direct=job.direct) as fd:
                write_all(fd, [head, *pieces], job.offset)
        return [jobs.Moved(job.id, bad, [entry.checksum for entry in entries])]

    def _create_chunk(self, job: jobs.CreateChunk, _: int | None) -> list[jobs.Result]:
        self._chunks.create(job.pool, job.chunk, Geometry(job.slot_bytes, job.slots, job.payload_at, job.file_bytes))
        return [jobs.Done(job.id)]

    def _drop_chunk(self, job: jobs.DropChunk, _: int | None) -> list[jobs.Result]:
        self._chunks.drop(job.pool, job.chunk)
        return [jobs.Done(job.id)]

    def _scan_chunk(self, job: jobs.ScanChunk, _: int | None) -> list[jobs.Result]:
        chunk = self._chunks.get(job.pool, job.chunk)
        parts: list[jobs.Result] = []
        for start in range(0, chunk.cut.slots, jobs.SCAN_PART):
            stop = min(start + jobs.SCAN_PART, chunk.cut.slots)
            generations, found = [], []
            for slot in range(start, stop):
                generation, fields = chunk.scan(slot)
                generations.append(generation)
                if fields is not None:
                    found.append(
                        jobs.SlotFound(
                            slot,
                            fields.size,
                            fields.last_use_ms,
                            fields.layout,
                            fields.hash,
                            fields.parent,
                            fields.group,
                            fields.shard,
                        )
                    )
            parts.append(jobs.ChunkScanned(job.id, *chunk.cut, generations, found, more=stop < chunk.cut.slots))
        return parts

    def _probe_device(self, job: jobs.ProbeDevice, _: int | None) -> list[jobs.Result]:
        folder = Path(job.path)
        ensure_format(folder)
        direct = probe_direct(folder)
        found = list_segments(folder)
        return [
            jobs.DeviceProbed(
                job.id, direct, found[start : start + jobs.SCAN_PART], more=start + jobs.SCAN_PART < len(found)
            )
            for start in range(0, max(len(found), 1), jobs.SCAN_PART)
        ]

    def _create_segment(self, job: jobs.CreateSegment, _: int | None) -> list[jobs.Result]:
        create_segment(Path(job.path), job.pool, job.sequence, job.segment_bytes)
        return [jobs.Done(job.id)]

    def _seal_segment(self, job: jobs.SealSegment, _: int | None) -> list[jobs.Result]:
        return [jobs.Done(job.id, seal_segment(Path(job.path), job.pool, job.sequence))]

    def _sync_segment(self, job: jobs.SyncSegment, _: int | None) -> list[jobs.Result]:
        with opened(job.path, os.O_RDONLY) as fd:
            os.fdatasync(fd)
        return [jobs.Done(job.id)]

    def _scan_segment(self, job: jobs.ScanSegment, _: int | None) -> list[jobs.Result]:
        scan = Scan(Path(job.path), job.pool, job.sequence)
        if scan.usable and not scan.sealed and scan.end < scan.file_bytes:
            os.truncate(job.path, scan.end)
            scan.file_bytes = scan.end
        return [
            jobs.SegmentScanned(
                job.id,
                [jobs.EntryFound(*entry) for entry in scan.entries[start : start + jobs.SCAN_PART]],
                scan.file_bytes,
                scan.faults,
                scan.usable,
                more=start + jobs.SCAN_PART < len(scan.entries),
            )
            for start in range(0, max(len(scan.entries), 1), jobs.SCAN_PART)
        ]

    def _unlink(self, job: jobs.Unlink, _: int | None) -> list[jobs.Result]:
        unlink_segments(Path(job.folder), job.names)
        return [jobs.Done(job.id)]


def serve(channel: socket.socket, mover: Mover) -> None:
    """Carry out jobs in the order they come, until the other end closes."""
    decoder: FrameDecoder[jobs.ToMover] = FrameDecoder(jobs.ToMover)
    fds: deque[int] = deque()
    channel.sendall(encode_frame(jobs.Ready()))
    while True:
        data, received, _, _ = socket.recv_fds(channel, _RECEIVE_BYTES, 64)
        fds.extend(received)
        if not data:
            return
        for message in decoder.feed(data):
            if isinstance(message, jobs.ForgetChunk):
                mover.forget(message)
                continue
            fd = fds.popleft() if isinstance(message, jobs.CopyIn) and fds else None
            try:
                results = mover.carry_out(message, fd)
            finally:
                if fd is not None:
                    os.close(fd)
            for result in results:
                channel.sendall(encode_frame(result))


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> int:
    """Entry point of a mover process."""
    parser = argparse.ArgumentParser(description="A mover of kvtier-store. Started by it, not by hand.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--arena", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the store ends its movers itself, once their writes are done
    channel = socket.socket(fileno=arguments.fd)
    lock = FileLock(arguments.arena / "movers" / f"{arguments.number}.lock")
    try:
        lock.acquire(_LOCK_WAIT_S)
        serve(channel, Mover(arguments.arena))
    except LockHeld as error:
        log("mover.lock_held", number=arguments.number, error=error)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
