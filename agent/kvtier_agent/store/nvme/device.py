"""A device: how it is cut, its superblock, and opening it.

A device is one descriptor: a raw block device, opened exclusively, or one sparse file in a folder, locked. Superblock
(and a copy), record area, units: the same in both. Pure but for `open_device`, which is for device movers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ..arena_format import PAGE, round_up
from ..checksums import ALGORITHM_XXH3, header_checksum
from ..errors import FormatRefused, StoreError
from .blocks import aligned, buffer, read_all, write_all
from .segments import MEDIA_FORMAT

DEVICE_FILE: Final = "kvtier.dev"
"""In a folder that is a device."""
SUPERBLOCK_MAGIC: Final = b"KVTDEVIC"
COPIES_AT: Final = (0, PAGE)
MIN_DEVICE_BYTES: Final = 2 << 20
MAX_UNIT_BYTES: Final = 64 << 20
_MIN_UNIT_BYTES: Final = 64 << 10
_RECORDS_AT: Final = 64 << 10
_BLANK_CHECK_BYTES: Final = 1 << 20
_SUPERBLOCK: Final = struct.Struct("<8sII16sQQQQQ")
_CHECK: Final = struct.Struct("<Q")
_CHECK_AT: Final = PAGE - _CHECK.size
_LOCK_POLL_S: Final = 0.05


class DeviceRefused(FormatRefused):
    """The device is not used, and nothing on it was changed; the message says why and what to do."""

    def __init__(self, message: str) -> None:
        StoreError.__init__(self, message)


@dataclass(frozen=True)
class Superblock:
    """How a device is cut."""

    uuid: bytes
    """16 random bytes, made when the device was initialised."""
    unit_bytes: int
    units: int
    records_at: int
    records_bytes: int
    """Of both halves of the record area."""
    units_at: int

    def unit_at(self, unit: int) -> int:
        """Where a unit begins on the device."""
        return self.units_at + unit * self.unit_bytes

    @property
    def device_bytes(self) -> int:
        """Where the last unit ends."""
        return self.unit_at(self.units)


@dataclass(frozen=True)
class OpenDevice:
    """A device that is in use."""

    fd: int
    superblock: Superblock
    direct: bool
    raw: bool
    writable: bool


def plan_superblock(capacity_bytes: int, device_uuid: bytes) -> Superblock:
    """How to cut a fresh device of this size: about 64 units or more, of at most 64 MiB.

    Raises DeviceRefused where it is too small.
    """
    if capacity_bytes < MIN_DEVICE_BYTES:
        raise DeviceRefused(f"{capacity_bytes} bytes are too few for a device; give it {MIN_DEVICE_BYTES} or more")
    wanted = max(capacity_bytes // 64, min(4 << 20, capacity_bytes // 16))
    unit_bytes = min(MAX_UNIT_BYTES, max(_MIN_UNIT_BYTES, _power_of_two(wanted)))
    records_bytes = min(8 << 20, max(64 << 10, _power_of_two(capacity_bytes // 256)))
    units_at = round_up(_RECORDS_AT + records_bytes, min(unit_bytes, 1 << 20))
    return Superblock(
        device_uuid,
        unit_bytes,
        (capacity_bytes - units_at) // unit_bytes,
        _RECORDS_AT,
        records_bytes,
        units_at,
    )


def encode_superblock(block: Superblock) -> bytes:
    """One page."""
    head = _SUPERBLOCK.pack(
        SUPERBLOCK_MAGIC,
        MEDIA_FORMAT,
        ALGORITHM_XXH3,
        block.uuid,
        block.unit_bytes,
        block.units,
        block.records_at,
        block.records_bytes,
        block.units_at,
    ).ljust(_CHECK_AT, b"\0")
    return head + _CHECK.pack(header_checksum(head))


def decode_superblock(where: str, data: bytes | memoryview) -> Superblock | None:
    """The superblock in this page; None: there is none, or it is damaged.

    Raises FormatRefused when it is intact and of another format.
    """
    magic, format_, algorithm, device_uuid, *cut = _SUPERBLOCK.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _CHECK_AT)
    if magic != SUPERBLOCK_MAGIC or check != header_checksum(bytes(data[:_CHECK_AT])):
        return None
    if (format_, algorithm) != (MEDIA_FORMAT, ALGORITHM_XXH3):
        raise FormatRefused(where, f"media format {MEDIA_FORMAT}", f"format {format_}, checksum {algorithm}")
    block = Superblock(device_uuid, *cut)
    sane = (
        block.unit_bytes % PAGE == 0
        and _MIN_UNIT_BYTES <= block.unit_bytes <= MAX_UNIT_BYTES
        and block.records_bytes % (2 * PAGE) == 0
        and block.records_at >= len(COPIES_AT) * PAGE
        and block.units_at >= block.records_at + block.records_bytes
    )
    return block if sane else None


def open_device(
    path: Path,
    capacity_bytes: int,
    *,
    initialize: str = "ifBlank",
    expect_uuid: bytes | None = None,
    wait_s: float = 0.0,
    fd: int | None = None,
) -> OpenDevice:
    """Open, lock and check a device; one that is blank is initialised, one that grew is used whole.

    `expect_uuid`: of the device that was here before; another one, or a blank one, is refused. `wait_s`: how long to
    wait for another's lock. `fd`: an open descriptor of it, exclusive already (a raw device that was handed over).
    Raises DeviceRefused, FormatRefused, OSError.
    """
    raw = fd is not None or not path.is_dir()
    where = path if raw else path / DEVICE_FILE
    writable = True
    if fd is None:
        fd, writable = _open_locked(where, raw=raw, create=expect_uuid is None, wait_s=wait_s)
    try:
        direct = raw or _set_direct(fd)
        size = os.lseek(fd, 0, os.SEEK_END)
        limit = min(size, capacity_bytes) if raw else capacity_bytes
        block = _read_superblock(str(where), fd)
        if expect_uuid is not None and (block is None or block.uuid != expect_uuid):
            found = "blank or damaged" if block is None else f"device {uuid.UUID(bytes=block.uuid)}"
            raise DeviceRefused(
                f"{where} came back as another device: expected {uuid.UUID(bytes=expect_uuid)}, found {found}; "
                "put the old one back, or restart the store to use this one"
            )
        if block is None:
            if initialize != "always" and not _is_blank(fd, size):
                raise DeviceRefused(
                    f"{where} is not blank and has no kvtier superblock; if its content may go, wipe it "
                    f"(blkdiscard or dd, first and last MiB) or set `initialize: always`"
                )
            if not writable:
                raise DeviceRefused(f"{where} is blank and read-only; make it writable")
            block = plan_superblock(limit, uuid.uuid4().bytes)
            _write_fresh(fd, block, raw=raw)
        grown = (limit - block.units_at) // block.unit_bytes
        if grown > block.units and writable:
            block = replace(block, units=grown)
            _write_superblock(fd, block)
        if not raw and size < block.device_bytes and writable:
            os.ftruncate(fd, block.device_bytes)
    except BaseException:
        os.close(fd)
        raise
    return OpenDevice(fd, block, direct, raw, writable)


def write_probe(device: OpenDevice) -> None:
    """Write the superblock's copy again and flush, as a sign that the device takes writes. Raises OSError."""
    write_all(device.fd, [aligned(encode_superblock(device.superblock))], COPIES_AT[1])
    os.fdatasync(device.fd)


def read_probe(device: OpenDevice) -> bool:
    """Whether the device still shows its own superblock. Raises OSError."""
    page = buffer(PAGE)
    read_all(device.fd, [page], COPIES_AT[1])
    block = decode_superblock("device", page)
    return block is not None and block.uuid == device.superblock.uuid


def _power_of_two(size: int) -> int:
    return 1 << max(size, 1).bit_length() - 1


def _open_locked(where: Path, *, raw: bool, create: bool, wait_s: float) -> tuple[int, bool]:
    """A descriptor, and whether it may be written."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _open_once(where, raw=raw, create=create)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EWOULDBLOCK):
                raise
            if time.monotonic() >= deadline:
                raise DeviceRefused(
                    f"{where} is in use by another process; find it with: fuser -v {where}, and stop it"
                ) from error
        time.sleep(_LOCK_POLL_S)


def _open_once(where: Path, *, raw: bool, create: bool) -> tuple[int, bool]:
    flags = os.O_CLOEXEC | (os.O_EXCL | os.O_DIRECT if raw else os.O_CREAT if create else 0)
    if raw and not stat.S_ISBLK(where.stat().st_mode):
        raise DeviceRefused(f"{where} is neither a folder nor a block device")
    writable = True
    try:
        fd = os.open(where, flags | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        fd, writable = os.open(where, flags & ~os.O_CREAT | os.O_RDONLY), False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd, writable


def _set_direct(fd: int) -> bool:
    """Switch the file to direct I/O, if its file system takes that."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        if os.fstat(fd).st_size >= PAGE:
            read_all(fd, [buffer(PAGE)], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return False
    return True


def _read_superblock(where: str, fd: int) -> Superblock | None:
    for at in COPIES_AT:
        page = buffer(PAGE)
        if os.lseek(fd, 0, os.SEEK_END) < at + PAGE:
            return None
        read_all(fd, [page], at)
        block = decode_superblock(where, page)
        if block is not None:
            return block
    return None


def _is_blank(fd: int, size: int) -> bool:
    for start in (0, max(0, size - _BLANK_CHECK_BYTES) // PAGE * PAGE):
        length = min(_BLANK_CHECK_BYTES, size - start) // PAGE * PAGE
        page = buffer(length)
        read_all(fd, [page] if length else [], start)
        if bytes(page).strip(b"\0"):
            return False
    return True


def _write_fresh(fd: int, block: Superblock, *, raw: bool) -> None:
    """Records and unit headers first, so that a superblock never stands before what it speaks of."""
    if not raw:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, block.device_bytes)
    zeros = buffer(1 << 20)
    for at in range(block.records_at, block.units_at, len(zeros)):
        write_all(fd, [zeros[: min(len(zeros), block.units_at - at)]], at)
    if raw:
        for unit in range(block.units):
            write_all(fd, [zeros[:PAGE]], block.unit_at(unit))
    os.fsync(fd)
    _write_superblock(fd, block)


def _write_superblock(fd: int, block: Superblock) -> None:
    """One copy after the other, so that a crash tears at most one."""
    for at in COPIES_AT:
        write_all(fd, [aligned(encode_superblock(block))], at)
        os.fsync(fd)
