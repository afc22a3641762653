"""The arena's file system: mounted once, resized in place, kept across stores, unmounted at release."""

from __future__ import annotations

import ctypes
import logging
import os
import stat
from pathlib import Path
from typing import Final

from kvtier_crds.models import HugePages

from kvtier_agent.node.folders import clear_folder, folder, make_folder
from kvtier_agent.node.preflight import PAGE_BYTES

log = logging.getLogger(__name__)

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x2, 0x4, 0x8, 0x20
_MNT_DETACH: Final = 2
_PUNCH_HOLE: Final = 0x2 | 0x1
"""FALLOC_FL_PUNCH_HOLE, which asks for FALLOC_FL_KEEP_SIZE."""
_HEADROOM_BYTES: Final = 64 << 20
_PAGE_BYTES: Final = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def arena_bytes(capacity: int) -> int:
    """Size limit of the tmpfs: the capacity, and room for what the store keeps beside its slots; whole pages."""
    size = capacity + max(_HEADROOM_BYTES, capacity // 16)
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def ensure_arena(mount: Path, store_folder: str, capacity: int, huge_pages: HugePages, store_uid: int) -> None:
    """The arena is mounted, of the right size, with the store's folder in it.

    A smaller size than what is in use waits for the store to give memory back. Raises OSError.
    """
    size = arena_bytes(capacity)
    if not is_mounted(mount):
        mount.mkdir(mode=0o755, parents=True, exist_ok=True)
        if huge_pages is HugePages.NONE:
            _mount("tmpfs", mount, f"size={size},mode=0755")
        else:
            # No size: this file system cannot change it later, and the pod's huge page limit holds anyway.
            _mount("hugetlbfs", mount, f"pagesize={PAGE_BYTES[huge_pages]},mode=0755")
        log.info("arena for %d bytes mounted at %s", capacity, mount)
    elif huge_pages is HugePages.NONE and decide_resize(os.statvfs(mount), size):
        _mount("tmpfs", mount, f"size={size}", _MS_REMOUNT)
        log.info("arena at %s resized to %d bytes", mount, size)
    with folder(mount) as arena:
        make_folder(arena, store_folder, uid=store_uid, mode=0o700)


def decide_resize(present: os.statvfs_result, size: int) -> bool:
    """Whether the file system's limit is to be changed to `size` now. Pure."""
    limit = present.f_blocks * present.f_frsize
    used = limit - present.f_bfree * present.f_frsize
    return limit != size and used <= size


def remove_arena(mount: Path) -> None:
    """Nothing is left of the arena. May be repeated. Raises OSError.

    Its files go first, and their memory with them: pods may map them, and hold the mount itself, for as long as
    they run. A hole reads as zeros, so no generation stands in it.
    """
    while is_mounted(mount):
        with folder(mount) as arena:
            _free_files(arena)
            clear_folder(arena)
        _check(_libc.umount2(os.fsencode(mount), _MNT_DETACH), "unmount", mount)
    if mount.exists():
        mount.rmdir()


def _free_files(arena: int) -> None:
    for _, _, names, inner in os.fwalk(".", dir_fd=arena):
        for name in names:
            if not stat.S_ISREG(os.stat(name, dir_fd=inner, follow_symlinks=False).st_mode):
                continue
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inner)
            try:
                os.unlink(name, dir_fd=inner)  # first, so that no store ever finds a chunk that is half freed
                size = ctypes.c_long(os.fstat(file).st_size)
                if size.value:
                    _check(_libc.fallocate(file, _PUNCH_HOLE, ctypes.c_long(0), size), "free the memory of", name)
            finally:
                os.close(file)


def is_mounted(mount: Path) -> bool:
    """Whether something is mounted at this very path."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split(" ", 5)[4] == str(mount) for line in lines)


def _mount(kind: str, mount: Path, options: str, flags: int = 0) -> None:
    flags |= _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    result = _libc.mount(b"kvtier", os.fsencode(mount), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount {kind} ({options})", mount)


def _check(result: int, doing: str, place: Path | str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{doing}: {os.strerror(code)}", str(place))
