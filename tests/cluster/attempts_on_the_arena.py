"""Run inside a pod: store a prompt, read it in place, try everything to change it, and print what came of that.

The client maps the chunks of the arena as ever; here their descriptors are kept as well.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from kvtier_client.arena import Chunk, ChunkMappings
from kvtier_client.client import Client
from kvtier_client.results import Page

LAYOUT, HASH, DATA = bytes(32), b"\x01" * 32, os.urandom(64 << 10)
PUT_DEADLINE_S = 30.0
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

kept: list[int] = []
map_chunk = ChunkMappings.map


def keep_and_map(self: ChunkMappings, descriptor: int) -> Chunk:
    kept.append(os.dup(descriptor))
    return map_chunk(self, descriptor)


def mapped(descriptor: int) -> int:
    """The address of a read-only mapping."""
    address = LIBC.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    assert isinstance(address, int)
    return address


def make_writable(descriptor: int) -> None:
    if LIBC.mprotect(mapped(descriptor), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")


def write_own_memory(descriptor: int) -> None:
    with Path("/proc/self/mem").open("wb", buffering=0) as memory:
        memory.seek(mapped(descriptor))
        memory.write(b"forged")


def reopen_mapping(descriptor: int) -> None:
    address = mapped(descriptor)
    os.open(f"/proc/self/map_files/{address:x}-{address + mmap.PAGESIZE:x}", os.O_RDWR)


def attempts(descriptor: int) -> dict[str, Callable[[], object]]:
    path = f"/proc/self/fd/{descriptor}"
    size = os.fstat(descriptor).st_size
    return {
        "pwrite": lambda: os.pwrite(descriptor, b"forged", 0),
        "mmap": lambda: mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        "mprotect": lambda: make_writable(descriptor),
        "write of /proc/self/mem": lambda: write_own_memory(descriptor),
        "open of map_files": lambda: reopen_mapping(descriptor),
        "open for writing": lambda: os.open(path, os.O_RDWR),
        "open with O_TRUNC": lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        "ftruncate": lambda: os.ftruncate(descriptor, 0),
        "truncate": lambda: os.truncate(path, 0),
        "fallocate": lambda: os.posix_fallocate(descriptor, 0, size),
        "fchmod": lambda: os.fchmod(descriptor, 0o666),
        "fchown": lambda: os.fchown(descriptor, 0, 0),
        "utime": lambda: os.utime(descriptor),
        "setxattr": lambda: os.setxattr(descriptor, "user.forged", b""),
        "link": lambda: os.link(path, "/tmp/link", follow_symlinks=True),
    }


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


ChunkMappings.map = keep_and_map  # type: ignore[method-assign]
with Client() as client:
    stored = client.put(LAYOUT, None, [Page(HASH, DATA)], deadline_s=PUT_DEADLINE_S)
    with client.get(LAYOUT, [HASH], deadline_s=PUT_DEADLINE_S) as held:
        read = [bytes(view) == DATA for view in held.views]
        outcomes = {name: outcome(attempt) for name, attempt in attempts(kept[0]).items()} if kept else {}
        intact = [bytes(view) == DATA for view in held.views][: held.intact()]
print(json.dumps({"user": os.getuid(), "read": read, "outcomes": outcomes, "intact": intact}))
