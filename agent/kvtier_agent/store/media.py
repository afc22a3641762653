"""Segment files as movers see them: aligned vectored I/O, scans, seals. Blocking; for movers only."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .arena_format import MAX_PAGE_BYTES, PAGE, is_pool_uid, round_up
from .checksums import page_checksum
from .jobs import SegmentFound
from .segments import (
    FORMAT_FILE,
    FORMAT_TEXT,
    SEGMENT_HEADER_BYTES,
    Entry,
    Run,
    check_format_text,
    decode_run_header,
    decode_segment_header,
    decode_summary,
    decode_trailer,
    encode_segment_header,
    encode_summary,
    parse_segment_name,
    peek_run_header,
    run_header_bytes,
)

_FOLDER_MODE: Final = 0o700
_OPEN_ATTEMPTS: Final = 20


@contextmanager
def opened(path: Path | str, flags: int, *, direct: bool = False) -> Iterator[int]:
    """A descriptor for the block's time. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make the folder's names durable. Raises OSError."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def read_all(fd: int, pieces: list[memoryview], offset: int) -> bool:
    """Fill all pieces from `offset` on; False: the file ends before. Raises OSError."""
    while pieces:
        done = os.preadv(fd, pieces, offset)
        if done == 0:
            return False
        offset += done
        pieces = _rest(pieces, done)
    return True


def write_all(fd: int, pieces: list[memoryview], offset: int) -> None:
    """Write all pieces from `offset` on. Raises OSError."""
    while pieces:
        done = os.pwritev(fd, pieces, offset)
        offset += done
        pieces = _rest(pieces, done)


def _rest(pieces: list[memoryview], done: int) -> list[memoryview]:
    for index, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[index + 1 :]]
        done -= len(piece)
    return []


def aligned(data: bytes) -> memoryview:
    """A copy of `data` whose address direct I/O takes."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[: len(data)] = data
    return memoryview(buffer)[: len(data)]


def probe_direct(folder: Path) -> bool:
    """Whether the file system takes direct I/O. Raises OSError when it takes none at all."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        with opened(probe, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            pass
        try:
            with opened(probe, os.O_RDWR, direct=True) as fd:
                write_all(fd, [aligned(bytes(PAGE))], 0)
                return read_all(fd, [aligned(bytes(PAGE))], 0)
        except OSError:
            return False
    finally:
        probe.unlink(missing_ok=True)


def ensure_format(folder: Path) -> None:
    """Check the FORMAT file of a device, or make it where there is none.

    Raises FormatRefused, OSError.
    """
    path = folder / FORMAT_FILE
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        fresh = path.with_suffix(".new")
        with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            os.write(fd, FORMAT_TEXT.encode())
            os.fsync(fd)
        fresh.rename(path)
        sync_folder(folder)
    else:
        check_format_text(str(path), text)


def list_segments(folder: Path) -> list[SegmentFound]:
    """Every segment file of a device. Raises OSError."""
    found = []
    for pool in folder.iterdir():
        if not is_pool_uid(pool.name) or not pool.is_dir():
            continue
        for file in pool.iterdir():
            sequence = parse_segment_name(file.name)
            if sequence is not None:
                found.append(SegmentFound(pool.name, sequence, file.stat().st_size))
    return found


def create_segment(path: Path, pool_uid: str, sequence: int, segment_bytes: int) -> None:
    """Make the file, all its blocks reserved, durable by name. Raises OSError."""
    fd = _open_new(path)
    try:
        os.posix_fallocate(fd, 0, segment_bytes)
        os.pwrite(fd, encode_segment_header(pool_uid, sequence, segment_bytes), 0)
        os.fsync(fd)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)


def _open_new(path: Path) -> int:
    """A descriptor of a new file, in a folder that is made where it is missing. Raises OSError."""
    attempts = 0
    while True:
        attempts += 1
        try:
            path.parent.mkdir(_FOLDER_MODE)
            sync_folder(path.parent.parent)
        except FileExistsError:
            pass
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # another mover removed the folder just now, as empty
            if attempts == _OPEN_ATTEMPTS:
                raise


def unlink_segments(folder: Path, names: list[str]) -> None:
    """Remove the files, and the folder if that empties it, durably. Raises OSError."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):  # another mover removed the folder
        sync_folder(folder)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync_folder(folder.parent)


class Scan:
    """What a segment holds, from its summary or else from its run headers."""

    def __init__(self, path: Path, pool_uid: str, sequence: int, *, verify_last_run: bool = True) -> None:
        """Raises FormatRefused, OSError."""
        self.entries: list[Entry] = []
        self.faults = 0
        self.end = SEGMENT_HEADER_BYTES
        """Just behind the last intact run."""
        self.sealed = False
        self._pool_uid = pool_uid
        self._sequence = sequence
        self._verify_last_run = verify_last_run
        with opened(path, os.O_RDONLY) as fd:
            self.file_bytes = os.fstat(fd).st_size
            header = os.pread(fd, SEGMENT_HEADER_BYTES, 0)
            self.usable = decode_segment_header(str(path), header, pool_uid, sequence)
            if self.usable and not self._read_summary(fd):
                self._read_runs(fd)

    def _read_summary(self, fd: int) -> bool:
        trailer = decode_trailer(os.pread(fd, PAGE, max(0, self.file_bytes - PAGE)), self._sequence, self.file_bytes)
        if trailer is None:
            return False
        offset, length, checksum = trailer
        entries = decode_summary(os.pread(fd, length, offset), checksum)
        if entries is None or not self._lie_within(entries):
            self.faults += 1
            return False
        self.entries, self.end, self.sealed = entries, offset, True
        return True

    def _read_runs(self, fd: int) -> None:
        """Follow run by run; where none stands, look for the next at every page.

        What was skipped counts as a fault only if an intact run comes after it: else it is a crash's tail.
        """
        offset, skipped, last = SEGMENT_HEADER_BYTES, False, None
        while offset + PAGE <= self.file_bytes:
            run = self._read_run(fd, offset)
            if run is None:
                skipped, offset = True, offset + PAGE
                continue
            self.faults += skipped
            skipped, last = False, run
            self.entries += run.entries
            offset = self.end = run.offset + run.run_bytes
        if last is not None and self._verify_last_run and not self._is_whole(fd, last):
            del self.entries[-len(last.entries) :]
            self.end = last.offset

    def _read_run(self, fd: int, offset: int) -> Run | None:
        head = os.pread(fd, PAGE, offset)
        if len(head) < PAGE:
            return None
        header_bytes = peek_run_header(head, self._sequence, offset, self.file_bytes)
        if header_bytes == 0:
            return None
        if header_bytes > PAGE:
            head += os.pread(fd, header_bytes - PAGE, offset + PAGE)
        run = decode_run_header(head, offset) if len(head) == header_bytes else None
        return run if run is not None and self._lie_within(run.entries) else None

    def _lie_within(self, entries: list[Entry]) -> bool:
        """Whether these can be pages of this file. A checksum that matches does not say who wrote it."""
        return all(
            0 < entry.size <= MAX_PAGE_BYTES
            and entry.offset % PAGE == 0
            and SEGMENT_HEADER_BYTES <= entry.offset <= self.file_bytes - entry.size
            for entry in entries
        )

    def _is_whole(self, fd: int, run: Run) -> bool:
        """Whether all payloads of the last run arrived; a kill can cut one write short, and only that one."""
        return all(
            entry.checksum
            == page_checksum(
                self._pool_uid,
                entry.layout,
                entry.hash,
                entry.group,
                entry.shard,
                self._sequence,
                memoryview(os.pread(fd, entry.size, entry.offset)),
            )
            for entry in run.entries
        )


def seal_segment(path: Path, pool_uid: str, sequence: int) -> int:
    """Write the summary behind the last run, cut the file there, flush. Returns the file's bytes.

    Returns 0, and changes nothing, where the segment is sealed or unusable. Raises FormatRefused, OSError.
    """
    scan = Scan(path, pool_uid, sequence, verify_last_run=False)
    if scan.sealed or not scan.usable:
        return 0
    summary = encode_summary(sequence, scan.end, scan.entries)
    with opened(path, os.O_RDWR) as fd:
        os.ftruncate(fd, scan.end)
        write_all(fd, [memoryview(summary)], scan.end)
        os.fsync(fd)
    return scan.end + len(summary)


def run_entries_at(offset: int, sizes: list[int]) -> list[int]:
    """Where the payloads of a run at `offset` of its segment lie."""
    at = offset + run_header_bytes(len(sizes))
    places = []
    for size in sizes:
        places.append(at)
        at += round_up(size, PAGE)
    return places
