"""Memory by address: read-only mappings, page tables filled ahead, and aligned memory to restore into."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import Final

import numpy as np
import numpy.typing as npt

PAGE_BYTES: Final = mmap.PAGESIZE
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
_HUGE_PAGE_BYTES: Final = 2 << 20
_POPULATE_BYTES: Final = 4 << 20

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_readonly(descriptor: int, size: int) -> memoryview:
    """`size` bytes of a file, shared and read-only; unmapped when nothing refers to them any more.

    `mmap.mmap` would keep a descriptor for each of an arena's thousands of chunks. Raises OSError.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size).atexit = False
    return memoryview(memory).cast("B").toreadonly()


def populate_for_reading(view: memoryview) -> None:
    """Fill the page tables of a mapping, so that its first reader does not fault. Lets other threads run.

    In steps, since whoever maps memory meanwhile waits for one.
    """
    for begin in range(0, view.nbytes, _POPULATE_BYTES):
        step = view[begin : begin + _POPULATE_BYTES]
        if not _populate(step, _MADV_POPULATE_READ):
            np.frombuffer(step, np.uint8)[::PAGE_BYTES].max()


def populate_for_writing(view: memoryview) -> None:
    """Have the kernel give memory for all of a page-aligned mapping now. Without effect before Linux 5.14."""
    _populate(view, _MADV_POPULATE_WRITE)


def _populate(view: memoryview, advice: int) -> bool:
    """False where the kernel does not know this advice."""
    return not _libc.madvise(address_of(view), view.nbytes, advice) or ctypes.get_errno() != errno.EINVAL


def address_of(view: memoryview) -> int:
    """Where the bytes of a C-contiguous view begin."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def aligned_buffer(size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes of zeros that begin at a page, to restore into: some processors copy slower otherwise.

    Raises ValueError unless there is at least one.
    """
    row: npt.NDArray[np.uint8] = aligned_pages(1, size)[0]
    return row


def aligned_pages(count: int, size: int) -> npt.NDArray[np.uint8]:
    """`count` rows of `size` bytes of zeros; each row begins at a page. Its memory is there before the first use.

    Raises ValueError unless a row has at least one byte.
    """
    if count < 0 or size < 1:
        raise ValueError(f"a buffer has at least one byte, not {count} times {size}")
    if not count:
        return np.empty((0, size), np.uint8)
    stride = -(-size // PAGE_BYTES) * PAGE_BYTES
    memory = mmap.mmap(-1, count * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if count * stride >= _HUGE_PAGE_BYTES:
        memory.madvise(mmap.MADV_HUGEPAGE)
    populate_for_writing(memoryview(memory))
    return np.frombuffer(memory, np.uint8).reshape(count, stride)[:, :size]
