"""The kernel's FUSE protocol, as much of it as a pass-through needs. Pure: bytes in, values out.

Spoken directly and not through libfuse, since an answer must be held back for as long as a test wants without
occupying a thread, and since no library has to be installed for it. Layouts: Linux, include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from typing import Final, NamedTuple

ROOT_ID: Final = 1
MAX_WRITE_BYTES: Final = 1 << 20
MAX_PAGES: Final = MAX_WRITE_BYTES >> 12
BUFFER_BYTES: Final = MAX_WRITE_BYTES + 4096
"""What one read of /dev/fuse must have room for."""

_MAJOR: Final = 7
_MINOR: Final = 36
_IN: Final = struct.Struct("<IIQQIIIHH")
IN_BYTES: Final = _IN.size
_OUT: Final = struct.Struct("<IiQ")
_INIT_IN: Final = struct.Struct("<IIIIII")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHI28x")
_ATTR: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("<QQQQII")
_ATTR_OUT: Final = struct.Struct("<QII")
_OPEN_OUT: Final = struct.Struct("<QII")
_STATFS: Final = struct.Struct("<QQQQQIIII24x")
_DIRENT: Final = struct.Struct("<QQII")
_SETATTR: Final = struct.Struct("<IIQQQQQQIIIIIIII")
_READ: Final = struct.Struct("<QQIIQII")
_FALLOCATE: Final = struct.Struct("<QQQII")

_ASYNC_READ: Final = 1 << 0
_BIG_WRITES: Final = 1 << 5
_ASYNC_DIO: Final = 1 << 15
_PARALLEL_DIROPS: Final = 1 << 18
_MAX_PAGES_FLAG: Final = 1 << 22
_INIT_EXT: Final = 1 << 30
_DIRECT_IO_ALLOW_MMAP_HIGH: Final = 1 << (36 - 32)

_FOPEN_DIRECT_IO: Final = 1 << 0
_FOPEN_PARALLEL_DIRECT_WRITES: Final = 1 << 6

PUNCH_HOLE: Final = 2
"""A mode of FALLOCATE."""
KEEP_SIZE: Final = 1

SETATTR_MODE: Final = 1 << 0
SETATTR_SIZE: Final = 1 << 3


class Op(IntEnum):
    """Kinds of requests that are answered; others get ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


UNANSWERED: Final = frozenset({Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT})


class Request(NamedTuple):
    """One request of the kernel."""

    opcode: int
    unique: int
    node: int
    body: memoryview


class WriteIn(NamedTuple):
    """A write: its place, and whether it must be durable before it is answered."""

    handle: int
    offset: int
    durable: bool
    data: memoryview


class SetAttr(NamedTuple):
    """What of a node is to change; `valid` is a set of SETATTR_ bits."""

    valid: int
    size: int
    mode: int


def decode_request(message: memoryview) -> Request:
    """The request in what one read of /dev/fuse returned."""
    length, opcode, unique, node, *_ = _IN.unpack_from(message)
    return Request(opcode, unique, node, message[IN_BYTES:length])


def encode_answer(unique: int, errno: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The pieces of an answer, for one vectored write."""
    length = _OUT.size + sum(len(part) for part in parts)
    return [_OUT.pack(length, -errno, unique), *parts]


def encode_init(body: memoryview) -> bytes:
    """The answer to INIT: large requests, many at once, nothing cached."""
    _, _, readahead, offered, _, offered_high = _INIT_IN.unpack_from(body)
    flags = _ASYNC_READ | _BIG_WRITES | _ASYNC_DIO | _PARALLEL_DIROPS | _MAX_PAGES_FLAG | _INIT_EXT
    high = _DIRECT_IO_ALLOW_MMAP_HIGH & offered_high
    background, congested = 256, 256
    return _INIT_OUT.pack(
        _MAJOR, _MINOR, readahead, flags & offered, background, congested, MAX_WRITE_BYTES, 1, MAX_PAGES, 0, high
    )


def _attr(node: int, stat: os.stat_result) -> bytes:
    times = (int(stat.st_atime), int(stat.st_mtime), int(stat.st_ctime))
    nanos = (stat.st_atime_ns % 10**9, stat.st_mtime_ns % 10**9, stat.st_ctime_ns % 10**9)
    owner = (stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid)
    return _ATTR.pack(node, stat.st_size, stat.st_blocks, *times, *nanos, *owner, 0, 4096, 0)


def encode_attr(node: int, stat: os.stat_result) -> bytes:
    """The answer to GETATTR and SETATTR; valid for no time at all."""
    return _ATTR_OUT.pack(0, 0, 0) + _attr(node, stat)


def encode_entry(node: int, stat: os.stat_result) -> bytes:
    """The answer to LOOKUP and MKDIR."""
    return _ENTRY.pack(node, 0, 0, 0, 0, 0) + _attr(node, stat)


def encode_open(handle: int, *, is_folder: bool = False) -> bytes:
    """The answer to OPEN and OPENDIR: every read and write comes here, several at once."""
    return _OPEN_OUT.pack(handle, 0 if is_folder else _FOPEN_DIRECT_IO | _FOPEN_PARALLEL_DIRECT_WRITES, 0)


def encode_write(written_bytes: int) -> bytes:
    """The answer to WRITE."""
    return struct.pack("<II", written_bytes, 0)


def encode_statfs(stat: os.statvfs_result) -> bytes:
    """The answer to STATFS."""
    blocks = (stat.f_blocks, stat.f_bfree, stat.f_bavail, stat.f_files, stat.f_ffree)
    return _STATFS.pack(*blocks, stat.f_bsize, 255, stat.f_frsize, 0)


def encode_listing(entries: list[tuple[int, str, bool]], offset: int, limit_bytes: int) -> bytes:
    """As much of a folder's (node, name, is folder) from `offset` on as fits."""
    listing = b""
    for index, (node, name, is_folder) in enumerate(entries[offset:], offset + 1):
        raw = os.fsencode(name)
        entry = _DIRENT.pack(node, index, len(raw), 4 if is_folder else 8) + raw
        entry = entry.ljust((len(entry) + 7) // 8 * 8, b"\0")
        if len(listing) + len(entry) > limit_bytes:
            break
        listing += entry
    return listing


def decode_name(body: memoryview) -> str:
    """The name at the end of LOOKUP, UNLINK and RMDIR."""
    return os.fsdecode(bytes(body).rstrip(b"\0"))


def decode_create(body: memoryview) -> tuple[int, int, str]:
    """Flags, mode and name of CREATE."""
    flags, mode, _, _ = struct.unpack_from("<IIII", body)
    return flags, mode, decode_name(body[16:])


def decode_mkdir(body: memoryview) -> tuple[int, str]:
    """Mode and name of MKDIR."""
    mode, _ = struct.unpack_from("<II", body)
    return mode, decode_name(body[8:])


def decode_rename(body: memoryview, *, with_flags: bool) -> tuple[int, int, str, str]:
    """New folder's node, flags, old name and new name of RENAME and RENAME2."""
    (folder,) = struct.unpack_from("<Q", body)
    flags = struct.unpack_from("<I", body, 8)[0] if with_flags else 0
    old, new, *_ = bytes(body[16 if with_flags else 8 :]).split(b"\0")
    return folder, flags, os.fsdecode(old), os.fsdecode(new)


def decode_handle(body: memoryview) -> int:
    """The handle at the head of RELEASE, FSYNC and FLUSH."""
    handle: int = struct.unpack_from("<Q", body)[0]
    return handle


def decode_open_flags(body: memoryview) -> int:
    """The flags of OPEN."""
    flags: int = struct.unpack_from("<I", body)[0]
    return flags


def decode_setattr(body: memoryview) -> SetAttr:
    """What SETATTR changes."""
    fields = _SETATTR.unpack_from(body)
    return SetAttr(valid=fields[0], size=fields[3], mode=fields[11])


def decode_read(body: memoryview) -> tuple[int, int, int]:
    """Handle, offset and size of READ and READDIR."""
    handle, offset, size, *_ = _READ.unpack_from(body)
    return handle, offset, size


def decode_write(body: memoryview) -> WriteIn:
    """The place and the bytes of WRITE."""
    handle, offset, size, _, _, flags, _ = _READ.unpack_from(body)
    return WriteIn(handle, offset, bool(flags & os.O_DSYNC), body[_READ.size : _READ.size + size])


def decode_fallocate(body: memoryview) -> tuple[int, int, int, int]:
    """Handle, mode, offset and length of FALLOCATE."""
    handle, offset, length, mode, _ = _FALLOCATE.unpack_from(body)
    return handle, mode, offset, length
