"""Aligned vectored I/O on a descriptor. Blocking; for movers only."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Final

MAX_PIECES: Final = 1024
"""IOV_MAX."""


def read_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Fill all pieces from `offset` on. Raises OSError; EIO too where the device ends before."""
    left = [piece for piece in pieces if piece]
    while left:
        done = os.preadv(fd, left[:MAX_PIECES], offset)
        if done == 0:
            raise OSError(errno.EIO, "the device ends before the read")
        offset += done
        left = _rest(left, done)


def write_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write all pieces from `offset` on. Raises OSError."""
    left = list(pieces)
    while left:
        done = os.pwritev(fd, left[:MAX_PIECES], offset)
        offset += done
        left = _rest(left, done)


def buffer(size: int) -> memoryview:
    """Zeroed memory whose address direct I/O takes."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


def aligned(data: bytes | memoryview) -> memoryview:
    """A copy of `data` whose address direct I/O takes."""
    copy = buffer(len(data))
    copy[:] = data
    return copy


def _rest(pieces: list[memoryview], done: int) -> list[memoryview]:
    for index, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[index + 1 :]]
        done -= len(piece)
    return []
