"""Raw block devices: found by a name that stays, looked at, opened for the store, blanked at release.

What a device holds is judged by its first and last MiB: a store's superblock begins with DEVICE_MAGIC,
zeros only are blank, and all else is someone's. Nothing is written but by `blank_device`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from kvtier_agent.link import DEVICE_MAGIC

T = TypeVar("T")

EDGE_BYTES: Final = 1 << 20
ANSWER_S: Final = 10.0
NO_ANSWER: Final = "does not answer"
_ABSENT: Final = (errno.ENOENT, errno.ENXIO, errno.ENODEV, errno.ENOMEDIUM)
_LINKS: Final = 8
_BLKROGET: Final = 0x125E
_BLKDISCARD: Final = 0x1277
_OPEN: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_SYS: Final = Path("/sys/dev/block")


class RawState(Enum):
    """What stands behind a device's name."""

    USABLE = auto()
    """Blank, or a store's own. Whether another program has it is in IN_USE."""
    MISSING = auto()
    NO_BLOCK_DEVICE = auto()
    READ_ONLY = auto()
    IN_USE = auto()
    FOREIGN = auto()
    """It holds what is not a store's."""


@dataclass(frozen=True)
class RawFacts:
    """One `device` of spec.tiers.nvme.devices, as it was found."""

    device: str
    state: RawState
    node: str = ""
    """What it is called now, such as /dev/nvme0n1."""
    detail: str = ""
    """IN_USE: by whom. MISSING: the part of the path that is missing."""
    size_bytes: int = 0
    """0: not looked at, since our store has it."""


class RawDevices:
    """Raw devices of the node, reached below `host_root`. Any thread, one at a time for each device; blocks.

    Whatever does not come to an end in ANSWER_S raises TimeoutError, and so does every further call for that device
    until it has: a device that hangs costs one thread.
    """

    def __init__(self, host_root: Path) -> None:
        self._host_root = host_root
        self._busy: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def look_at(self, device: str) -> RawFacts:
        """The device as it is now. Raises OSError when it cannot be read, TimeoutError among them."""
        return self._bounded(device, lambda: look_at(device, host_root=self._host_root), ignore)

    def open(self, device: str) -> int:
        """A descriptor for reading, writing and direct I/O, which nobody else has exclusively. Raises OSError."""
        return self._bounded(device, lambda: open_device(device, host_root=self._host_root), os.close)

    def blank(self, device: str) -> None:
        """A store's device is blank again. May be repeated. Raises OSError, EBUSY among them."""
        self._bounded(device, lambda: blank_device(device, host_root=self._host_root), ignore)

    def _bounded(self, device: str, work: Callable[[], T], drop: Callable[[T], object]) -> T:
        """What `work` returns or raises; a result that comes too late is dropped."""
        busy = self._busy[device]
        if not busy.acquire(timeout=ANSWER_S):
            raise TimeoutError(errno.ETIMEDOUT, NO_ANSWER, device)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                _answer(answer, work, drop)
            finally:
                busy.release()

        threading.Thread(target=run, name=f"device {device}", daemon=True).start()
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            if not answer.cancel():  # it came just now
                return answer.result()
            raise TimeoutError(errno.ETIMEDOUT, NO_ANSWER, device) from None


def _answer(answer: Future[T], work: Callable[[], T], drop: Callable[[T], object]) -> None:
    """Set what `work` returns or raises; a result that nobody waits for any more is dropped."""
    try:
        result = work()
    except Exception as error:
        if answer.set_running_or_notify_cancel():
            answer.set_exception(error)
        return
    if answer.set_running_or_notify_cancel():
        answer.set_result(result)
    else:
        drop(result)


def ignore(_result: object) -> None:
    """Drop nothing."""


def look_at(device: str, *, host_root: Path) -> RawFacts:
    """The device as it is now. Blocks. Raises OSError when it cannot be read."""
    try:
        node = resolve(device, host_root=host_root)
    except FileNotFoundError as error:
        return RawFacts(device, RawState.MISSING, detail=str(error.filename))
    place = _below(host_root, node)
    try:
        found = place.lstat()
        if not stat.S_ISBLK(found.st_mode):
            return RawFacts(device, RawState.NO_BLOCK_DEVICE, node)
        with _opened(place, os.O_RDONLY | os.O_DIRECT) as fd:
            size = os.lseek(fd, 0, os.SEEK_END)
            if fcntl.ioctl(fd, _BLKROGET, bytes(4)) != bytes(4):
                return RawFacts(device, RawState.READ_ONLY, node, size_bytes=size)
            first, last = _edges(fd, size)
    except OSError as error:
        if error.errno in _ABSENT:
            return RawFacts(device, RawState.MISSING, node, detail=device)
        raise
    user = _user(found.st_rdev)
    if user is None and first.startswith(DEVICE_MAGIC):
        return RawFacts(device, RawState.USABLE, node, size_bytes=size)
    if user is None and not _claimable(place):
        user = "held by another program"
    if user is not None:
        return RawFacts(device, RawState.IN_USE, node, detail=user, size_bytes=size)
    blank = not any(first) and not any(last)
    return RawFacts(device, RawState.USABLE if blank else RawState.FOREIGN, node, size_bytes=size)


def open_device(device: str, *, host_root: Path) -> int:
    """A descriptor for reading, writing and direct I/O, which nobody else has exclusively. Blocks. Raises OSError."""
    return os.open(_below(host_root, resolve(device, host_root=host_root)), os.O_RDWR | os.O_EXCL | os.O_DIRECT | _OPEN)


def blank_device(device: str, *, host_root: Path) -> None:
    """A store's device is blank again; one that is gone, or holds what is not a store's, is left alone.

    May be repeated. Blocks. Raises OSError, EBUSY among them.
    """
    try:
        if not _is_a_stores(device, host_root):
            return
        fd = open_device(device, host_root=host_root)
    except OSError as error:
        if error.errno in _ABSENT:
            return
        raise
    try:
        size = os.lseek(fd, 0, os.SEEK_END)
        with suppress(OSError):  # not every device can; what is not discarded is overwritten in time
            fcntl.ioctl(fd, _BLKDISCARD, struct.pack("QQ", 0, size))
        with mmap.mmap(-1, EDGE_BYTES) as zeros:
            edge = min(EDGE_BYTES, size)
            for offset in (size - edge, 0):  # the superblock last: an interrupted end is begun anew
                os.pwritev(fd, [memoryview(zeros)[:edge]], offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_a_stores(device: str, host_root: Path) -> bool:
    """Whether it is a block device that begins with a store's superblock, whoever has it. Raises OSError."""
    place = _below(host_root, resolve(device, host_root=host_root))
    if not stat.S_ISBLK(place.lstat().st_mode):
        return False
    with _opened(place, os.O_RDONLY | os.O_DIRECT) as fd:
        first, _ = _edges(fd, os.lseek(fd, 0, os.SEEK_END))
    return first.startswith(DEVICE_MAGIC)


def resolve(device: str, *, host_root: Path) -> str:
    """What the name stands for on the node, every link followed within the node's root.

    Raises FileNotFoundError with the part that is missing.
    """
    path = device
    for _ in range(_LINKS):
        place = _below(host_root, path)
        try:
            target = place.readlink()
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link: the device itself
                return path
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        path = os.path.normpath(PurePosixPath(path).parent / target)
    raise FileNotFoundError(errno.ELOOP, os.strerror(errno.ELOOP), device)


def _below(host_root: Path, path: str) -> Path:
    return host_root / path.lstrip("/")


@contextmanager
def _opened(place: Path, flags: int) -> Iterator[int]:
    fd = os.open(place, flags | _OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


def _edges(fd: int, size: int) -> tuple[bytes, bytes]:
    """The first and the last MiB."""
    edge = min(EDGE_BYTES, size)
    with mmap.mmap(-1, EDGE_BYTES) as buffer:  # page-aligned, as direct I/O wants it
        parts = []
        for offset in (0, size - edge):
            with memoryview(buffer) as view, view[:edge] as part:
                read = os.preadv(fd, [part], offset)
                parts.append(bytes(part[:read]))
    return parts[0], parts[1]


def _claimable(place: Path) -> bool:
    """Whether nobody has it exclusively. The claim is dropped at once."""
    try:
        with _opened(place, os.O_RDONLY | os.O_EXCL):
            return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise


def _user(rdev: int) -> str | None:
    """Who has the device, or a part of it, in words; None: nobody that the kernel names."""
    numbers = {f"{os.major(rdev)}:{os.minor(rdev)}"}
    folder = _SYS / next(iter(numbers))
    numbers |= {part.read_text().strip() for part in folder.glob("*/dev")}  # its partitions
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ", 5)
        if fields[2] in numbers:
            return f"mounted at {fields[4]}"
    holders = sorted({holder.name for number in numbers for holder in (_SYS / number / "holders").glob("*")})
    return f"a part of {', '.join(holders)}" if holders else None
