"""The log of all that reached a device: writes with their bytes, flushes, marks, each where it began and ended.

```
log    := record*
record := kind(u8) 3 zero bytes  id(u32)  offset(u64)  length(u64)  [length bytes if kind is WRITE]
```

Little-endian. What began and has no DONE was in flight when the log ends. The last record may be torn off.
"""

from __future__ import annotations

import bisect
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

_RECORD: Final = struct.Struct("<BxxxIQQ")


class Kind(IntEnum):
    """Kinds of records."""

    WRITE = 1
    WRITE_DURABLE = 2
    """A write that is durable once it is done."""
    ZEROS = 3
    FLUSH = 4
    DONE = 5
    """Of the write, zeros or flush with this id, before it was answered."""
    MARK = 6
    """A point in time that the test named: `id` is the test's number."""


class Recorder:
    """Appends to a log. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._next_id = 0

    def begin_write(self, offset: int, data: memoryview, *, durable: bool) -> int:
        """A write arrived; returns its id."""
        return self._begin(Kind.WRITE_DURABLE if durable else Kind.WRITE, offset, len(data), data)

    def begin_zeros(self, offset: int, length: int) -> int:
        """A request to punch a hole arrived; returns its id."""
        return self._begin(Kind.ZEROS, offset, length)

    def begin_flush(self) -> int:
        """A flush arrived; returns its id."""
        return self._begin(Kind.FLUSH, 0, 0)

    def done(self, id_: int) -> None:
        """It is carried out and about to be answered."""
        with self._lock:
            os.write(self._fd, _RECORD.pack(Kind.DONE, id_, 0, 0))

    def mark(self, number: int) -> None:
        """Whatever the test means by it has happened by now."""
        with self._lock:
            os.write(self._fd, _RECORD.pack(Kind.MARK, number, 0, 0))

    def close(self) -> None:
        """End the log."""
        os.close(self._fd)

    def _begin(self, kind: Kind, offset: int, length: int, data: memoryview | bytes = b"") -> int:
        with self._lock:
            self._next_id += 1
            os.writev(self._fd, [_RECORD.pack(kind, self._next_id, offset, length), data])
            return self._next_id


@dataclass
class Write:
    """Bytes that were to replace those at `offset`. Times are positions in the log."""

    offset: int
    length: int
    data: memoryview | None
    """None: zeros."""
    durable: bool
    begun: int
    done: int | None = None


@dataclass
class Flush:
    """What was done before it began is durable once it is done."""

    begun: int
    done: int | None = None


@dataclass
class Recording:
    """A log that was read: its events in the order in which they began."""

    writes: list[Write] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)
    """By the test's number, where it stands."""
    length: int = 0
    """Records in all: a cut at `length` comes after the last one."""

    def marks_before(self, cut: int) -> list[int]:
        """The marks that stand before `cut`."""
        return [number for number, at in self.marks.items() if at < cut]

    def flushed_until(self, cut: int) -> int:
        """What was done before this position is durable at `cut`."""
        return max((flush.begun for flush in self.flushes if flush.done is not None and flush.done < cut), default=0)

    def begun_before(self, cut: int) -> Sequence[Write]:
        """The writes that began before `cut`."""
        return self.writes[: bisect.bisect_left(self.writes, cut, key=lambda write: write.begun)]


def read_recording(path: Path) -> Recording:
    """The log's events."""
    return parse_recording(memoryview(path.read_bytes()))


def parse_recording(log: memoryview) -> Recording:
    """The events of a log; one that is torn off at the end is left out. Pure."""
    found = Recording()
    open_: dict[int, Write | Flush] = {}
    at = 0
    while at + _RECORD.size <= len(log):
        kind, id_, offset, length = _RECORD.unpack_from(log, at)
        at += _RECORD.size
        position = found.length
        match Kind(kind):
            case Kind.WRITE | Kind.WRITE_DURABLE:
                if at + length > len(log):
                    break
                write = Write(offset, length, log[at : at + length], kind == Kind.WRITE_DURABLE, position)
                found.writes.append(write)
                open_[id_] = write
                at += length
            case Kind.ZEROS:
                write = Write(offset, length, None, durable=False, begun=position)
                found.writes.append(write)
                open_[id_] = write
            case Kind.FLUSH:
                flush = Flush(position)
                found.flushes.append(flush)
                open_[id_] = flush
            case Kind.DONE:
                open_.pop(id_).done = position
            case Kind.MARK:
                found.marks[id_] = position
        found.length += 1
    return found
