"""A device's mover: a process that does one device's I/O, several requests at once.

Reads go straight into arena slots and are checked and committed there, writes come straight from them; threads overlap
because system calls and digests release the GIL. It dies with its parent, and holds its lock file's lock while it
lives, so that whoever gets the lock knows that none of its I/O is in flight: a device that hangs, hangs this process.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..arena_format import PAGE, round_up
from ..checksums import payload_digest
from ..chunkmap import ChunkMaps
from ..errors import FormatRefused
from ..jobs import Failed
from ..log import log
from ..moverproc import Reply, run_mover
from ..refs import Ref, decode_refs
from . import jobs
from .blocks import aligned, buffer, read_all, write_all
from .device import OpenDevice, open_device, read_probe, write_probe
from .scan import read_contents, seal, split_entries
from .segments import (
    ENTRY_BYTES,
    SegmentId,
    decode_segment_header,
    encode_run_header,
    encode_segment_header,
    make_entries,
    run_bytes,
)

THREADS: Final = 12
"""More than the requests in flight that the index process allows, so that a probe is not behind those that hang."""
_OPEN_WAIT_S: Final = 60.0
"""Jobs that come while the device is being opened wait this long."""
_SCRATCH_BYTES: Final = 1 << 20
_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


class DeviceMover:
    """Carries out jobs on one device and one arena. Blocking, from several threads at once."""

    takes_fd: tuple[type, ...] = (jobs.TakeBounce, jobs.TakeDevice)

    def __init__(self, arena: Path, path: Path) -> None:
        self._path = path
        self._device_fd: int | None = None
        self._bounce = memoryview(b"")
        self._chunks = ChunkMaps(arena)
        self._opened: OpenDevice | None = None
        self._settled = threading.Event()
        """Set once the device was opened, or could not be."""
        self._scratch = threading.local()
        self._work: dict[type, Callable[[Any], list[jobs.Result]]] = {
            jobs.Open: self._open,
            jobs.ReadArea: self._read_area,
            jobs.WriteArea: self._write_area,
            jobs.ListUnits: self._list_units,
            jobs.StageUnit: self._stage_unit,
            jobs.InitUnit: self._init_unit,
            jobs.FreeUnits: self._free_units,
            jobs.Read: self._read,
            jobs.WriteRun: self._write_run,
            jobs.Lift: self._lift,
            jobs.Lay: self._lay,
            jobs.Seal: self._seal,
            jobs.Sync: self._sync,
            jobs.Probe: self._probe,
        }

    def carry_out(self, job: Any, fd: int | None, reply: Reply) -> None:
        """Do the job. Raises FormatRefused (DeviceRefused), OSError."""
        if isinstance(job, jobs.TakeBounce):
            assert fd is not None
            self._bounce = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
            reply(jobs.Done(job.id))
        elif isinstance(job, jobs.TakeDevice):
            assert fd is not None
            self._device_fd = os.dup(fd)
            reply(jobs.Done(job.id))
        else:
            try:
                results = self._work[type(job)](job)
            except ValueError as error:
                results = [Failed(job.id, errno.EINVAL, str(error))]
            for result in results:
                reply(result)

    def forget(self, pool_uid: str, chunk: int) -> None:
        """Unmap a chunk that is gone; chunk numbers are the node's, whatever the pool."""
        del pool_uid
        self._chunks.forget(chunk)

    @property
    def _device(self) -> OpenDevice:
        if self._opened is None:
            self._settled.wait(_OPEN_WAIT_S)
        if self._opened is None:
            raise OSError(errno.ENODEV, "the device is not open")
        return self._opened

    def _open(self, job: jobs.Open) -> list[jobs.Result]:
        try:
            opened = open_device(
                self._path,
                job.capacity_bytes,
                initialize=job.initialize,
                expect_uuid=job.expect_uuid or None,
                wait_s=job.wait_s,
                fd=None if self._device_fd is None else os.dup(self._device_fd),
            )
            self._opened = opened
        finally:
            self._settled.set()
        cut = opened.superblock
        return [
            jobs.Opened(
                job.id,
                cut.uuid,
                cut.unit_bytes,
                cut.units,
                cut.records_at,
                cut.records_bytes,
                cut.units_at,
                opened.direct,
                opened.raw,
                opened.writable,
            )
        ]

    def _read_area(self, job: jobs.ReadArea) -> list[jobs.Result]:
        data = buffer(job.size)
        read_all(self._device.fd, [data], job.at)
        starts = range(0, job.size, jobs.PART_BYTES)
        return [
            jobs.AreaRead(job.id, bytes(data[at : at + jobs.PART_BYTES]), more=at + jobs.PART_BYTES < job.size)
            for at in starts
        ]

    def _write_area(self, job: jobs.WriteArea) -> list[jobs.Result]:
        write_all(self._device.fd, [aligned(job.data)], job.at)
        os.fdatasync(self._device.fd)
        return [jobs.Done(job.id)]

    def _list_units(self, job: jobs.ListUnits) -> list[jobs.Result]:
        device, found, damaged, unread = self._device, [], 0, 0
        foreign: list[int] = []
        cut = device.superblock
        page = buffer(PAGE)
        for unit in range(cut.units):
            try:
                read_all(device.fd, [page], cut.unit_at(unit))
                segment = decode_segment_header(f"unit {unit} of {self._path}", page, unit, cut.unit_bytes)
            except FormatRefused as error:
                log("segment.refused", error=error)
                foreign.append(unit)
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                log("segment.refused", unit=unit, error=error)  # a bad spot; the others are there
                foreign.append(unit)
                unread += 1
                continue
            if segment is not None:
                found.append(jobs.UnitFound(unit, *segment))
            else:
                damaged += page[:8] != bytes(8)
        step = 4096
        return [
            jobs.UnitsListed(job.id, found[at : at + step], foreign, damaged, unread, more=at + step < len(found))
            for at in range(0, max(len(found), 1), step)
        ]

    def _stage_unit(self, job: jobs.StageUnit) -> list[jobs.Result]:
        held = read_contents(self._device, job.unit, SegmentId(job.pool, job.sequence, job.nonce))
        parts = split_entries(held.entries, jobs.PART_BYTES, ENTRY_BYTES)
        return [
            jobs.Staged(
                job.id,
                held.layouts,
                part,
                held.sealed,
                held.runs if number == 0 else [],
                held.end,
                held.lost,
                more=number + 1 < len(parts),
            )
            for number, part in enumerate(parts)
        ]

    def _init_unit(self, job: jobs.InitUnit) -> list[jobs.Result]:
        """The header goes out unflushed: the flush that a put waits for covers it."""
        device = self._device
        cut = device.superblock
        at = cut.unit_at(job.unit)
        if not device.raw:
            os.posix_fallocate(device.fd, at, cut.unit_bytes)
        head = encode_segment_header(SegmentId(job.pool, job.sequence, job.nonce), job.unit, cut.unit_bytes)
        write_all(device.fd, [aligned(head)], at)
        return [jobs.Done(job.id)]

    def _free_units(self, job: jobs.FreeUnits) -> list[jobs.Result]:
        device = self._device
        cut = device.superblock
        zeros = buffer(PAGE)
        for unit in job.units:
            write_all(device.fd, [zeros], cut.unit_at(unit))
        os.fdatasync(device.fd)
        if not device.raw:
            for unit in job.units:
                _punch(device.fd, cut.unit_at(unit), cut.unit_bytes)
        return [jobs.Done(job.id)]

    def _read(self, job: jobs.Read) -> list[jobs.Result]:
        refs = decode_refs(job.refs)
        maps = [self._chunks.get(job.pool, ref.chunk) for ref in refs]
        slots = []
        for ref, chunk in zip(refs, maps, strict=True):
            chunk.begin(ref.slot, ref.generation)
            slots.append(chunk.payload(ref.slot, round_up(ref.size, PAGE)))
        started = time.monotonic()
        failed = self._scatter(self._device.superblock.unit_at(job.unit), job.offset, job.size, refs, slots)
        took = time.monotonic() - started
        bad = []
        for index, (ref, chunk, slot) in enumerate(zip(refs, maps, slots, strict=True)):
            if index in failed:
                continue
            if payload_digest(slot[: ref.size]) == ref.digest:
                chunk.commit(ref, job.begun)
            else:
                bad.append(index)
        return [jobs.Moved(job.id, bad, sorted(failed), took)]

    def _scatter(
        self, start: int, offset: int, size: int, refs: Sequence[Ref], slots: Sequence[memoryview]
    ) -> set[int]:
        """One request for all; where the device refuses that, one for each page. Indices of what was not read.

        Raises OSError when it reads none.
        """
        pieces: list[memoryview] = []
        at = offset
        for ref, slot in zip(refs, slots, strict=True):
            if ref.offset > at:
                pieces += self._skip(ref.offset - at)
            pieces.append(slot)
            at = ref.offset + len(slot)
        if offset + size > at:
            pieces += self._skip(offset + size - at)
        try:
            read_all(self._device.fd, pieces, start + offset)
        except OSError:
            if len(refs) == 1:
                raise
            return self._one_by_one(start, refs, slots)
        return set()

    def _one_by_one(self, start: int, refs: Sequence[Ref], slots: Sequence[memoryview]) -> set[int]:
        failed: set[int] = set()
        for index, (ref, slot) in enumerate(zip(refs, slots, strict=True)):
            try:
                read_all(self._device.fd, [slot], start + ref.offset)
            except OSError:
                failed.add(index)
                if len(failed) == index + 1 and index + 1 >= min(len(refs), 4):
                    raise
        return failed

    def _skip(self, size: int) -> list[memoryview]:
        """Pieces that take what nobody wants; all threads' reads may fall on each other there."""
        scratch = getattr(self._scratch, "memory", None)
        if scratch is None:
            scratch = self._scratch.memory = buffer(_SCRATCH_BYTES)
        whole, rest = divmod(size, _SCRATCH_BYTES)
        return [scratch] * whole + ([scratch[:rest]] if rest else [])

    def _write_run(self, job: jobs.WriteRun) -> list[jobs.Result]:
        refs = decode_refs(job.refs)
        slots = [self._chunks.get(job.pool, ref.chunk).payload(ref.slot, round_up(ref.size, PAGE)) for ref in refs]
        return self._lay_down(job, refs, slots)

    def _lay(self, job: jobs.Lay) -> list[jobs.Result]:
        refs = decode_refs(job.refs)
        sizes = [round_up(ref.size, PAGE) for ref in refs]
        at, pieces = job.bounce, []
        for size in sizes:
            pieces.append(self._bounce[at : at + size])
            at += size
        return self._lay_down(job, refs, pieces)

    def _lay_down(
        self, job: jobs.WriteRun | jobs.Lay, refs: Sequence[Ref], pieces: Sequence[memoryview]
    ) -> list[jobs.Result]:
        """Nothing is written where a payload is not what the index knows."""
        bad = [
            index
            for index, (ref, piece) in enumerate(zip(refs, pieces, strict=True))
            if payload_digest(piece[: ref.size]) != ref.digest
        ]
        if bad:
            return [jobs.Moved(job.id, bad, [], 0.0)]
        segment = SegmentId(job.pool, job.sequence, job.nonce)
        entries = make_entries(segment, refs, job.offset, job.serial)
        total = run_bytes([ref.size for ref in refs])
        head = encode_run_header(segment, refs[0].layout, entries, job.offset, total, job.serial)
        started = time.monotonic()
        at = self._device.superblock.unit_at(job.unit) + job.offset
        write_all(self._device.fd, [aligned(head), *pieces], at)
        return [jobs.Moved(job.id, [], [], time.monotonic() - started)]

    def _lift(self, job: jobs.Lift) -> list[jobs.Result]:
        """Pages that lie one behind the other, or nearly, come in one request."""
        refs = decode_refs(job.refs)
        pieces, at = [], job.bounce
        for ref in refs:
            size = round_up(ref.size, PAGE)
            pieces.append(self._bounce[at : at + size])
            at += size
        started = time.monotonic()
        for group in _neighbours(job.places, [len(piece) for piece in pieces]):
            wanted: list[memoryview] = []
            end = first = job.places[group[0]]
            for index in group:
                wanted += self._skip(job.places[index] - end)
                wanted.append(pieces[index])
                end = job.places[index] + len(pieces[index])
            read_all(self._device.fd, wanted, first)
        took = time.monotonic() - started
        bad = [
            index
            for index, (ref, piece) in enumerate(zip(refs, pieces, strict=True))
            if payload_digest(piece[: ref.size]) != ref.digest
        ]
        return [jobs.Moved(job.id, bad, [], took)]

    def _seal(self, job: jobs.Seal) -> list[jobs.Result]:
        damaged = seal(self._device, job.unit, SegmentId(job.pool, job.sequence, job.nonce), job.runs)
        if damaged:
            log("segment.damaged", path=self._path, unit=job.unit, runs=damaged)
        return [jobs.Done(job.id)]

    def _sync(self, job: jobs.Sync) -> list[jobs.Result]:
        started = time.monotonic()
        os.fdatasync(self._device.fd)
        return [jobs.Done(job.id, time.monotonic() - started)]

    def _probe(self, job: jobs.Probe) -> list[jobs.Result]:
        started = time.monotonic()
        if not read_probe(self._device):
            return [Failed(job.id, errno.ENODEV, "the device shows no superblock of its own any more")]
        if job.write:
            write_probe(self._device)
        return [jobs.Done(job.id, time.monotonic() - started)]


def _neighbours(places: Sequence[int], sizes: Sequence[int], max_gap: int = 64 << 10) -> list[list[int]]:
    """Indices grouped into requests: rising, near each other, not too many pieces, not too large."""
    groups: list[list[int]] = [[0]] if places else []
    total = sizes[0] if sizes else 0
    for before, index in pairwise(range(len(places))):
        gap = places[index] - places[before] - sizes[before]
        if 0 <= gap <= max_gap and len(groups[-1]) < 500 and total + sizes[index] <= 4 << 20:
            groups[-1].append(index)
            total += gap + sizes[index]
        else:
            groups.append([index])
            total = sizes[index]
    return groups


def _punch(fd: int, at: int, size: int) -> None:
    """Give the file system its blocks back, where it takes them."""
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(size)):
        number = ctypes.get_errno()
        if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(number, os.strerror(number))


def main() -> int:
    """Entry point of a device mover process."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--path", type=Path, required=True)

    return run_mover(
        jobs.ToMover,
        lambda arguments: DeviceMover(arguments.arena, arguments.path),
        threads=THREADS,
        add_arguments=add_arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
