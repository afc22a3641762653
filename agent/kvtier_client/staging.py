"""Staging: memory of the client's own, from which the agent copies what a put stores.

A memfd sealed against resizing, so that the agent can map it without fear of SIGBUS; it is charged to
the client's pod, which touched it first.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .failures import LOCAL, Failure
from .protocol.messages import MAX_BLOCKS, PutPage
from .results import Page

ALIGNMENT: Final = 4096
"""Slots begin at such offsets, and a copy is three times faster when both ends agree modulo this."""


@dataclass(frozen=True)
class Part:
    """A run of whole blocks that fits the staging at once."""

    parent: bytes | None
    pages: tuple[Page, ...]
    offsets: tuple[int, ...]


def cut_into_parts(parent: bytes | None, pages: Sequence[Page], sizes: Sequence[int], capacity: int) -> list[Part]:
    """Parts in chain order, each parent the last block of the part before. Pure.

    `sizes` are the pages' bytes. Raises ValueError when one block alone exceeds `capacity` bytes.
    """
    parts: list[Part] = []
    begin = end = 0
    offsets: list[int] = []
    for first, after in _blocks(pages):
        needed = sum(_aligned(size) for size in sizes[first:after])
        if needed > capacity:
            raise ValueError(f"block {pages[first].hash.hex()} needs {needed} bytes of staging, of {capacity}")
        if end + needed > capacity or after - begin > MAX_BLOCKS:
            parts.append(Part(parent, tuple(pages[begin:first]), tuple(offsets)))
            parent, begin, end, offsets = pages[first - 1].hash, first, 0, []
        for size in sizes[first:after]:
            offsets.append(end)
            end += _aligned(size)
    if begin < len(pages):
        parts.append(Part(parent, tuple(pages[begin:]), tuple(offsets)))
    return parts


def _blocks(pages: Sequence[Page]) -> list[tuple[int, int]]:
    """Where each block's pages begin and end."""
    starts = [i for i, page in enumerate(pages) if i == 0 or page.hash != pages[i - 1].hash]
    return list(itertools.pairwise([*starts, len(pages)]))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Staging:
    """A sealed memfd and its writable mapping. Used by one put at a time."""

    def __init__(self, size: int) -> None:
        """Make one of `size` bytes; memory is used as it is filled.

        Raises Failure when this process cannot have it.
        """
        self.size = size
        try:
            self.descriptor = os.memfd_create("kvtier-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.descriptor, size)
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                memory = mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED)
            except BaseException:
                os.close(self.descriptor)
                raise
        except OSError as error:
            raise Failure(LOCAL, f"making {size} bytes of staging: {error.strerror or error}") from error
        self._bytes = np.frombuffer(memory, dtype=np.uint8)

    def fill(self, part: Part, data: Sequence[memoryview]) -> list[PutPage]:
        """Copy the part's pages in, and name where they lie."""
        placed = []
        for page, offset, source in zip(part.pages, part.offsets, data, strict=True):
            size = source.nbytes
            np.copyto(self._bytes[offset : offset + size], np.frombuffer(source, dtype=np.uint8))
            placed.append(PutPage(page.hash, offset, size, page.page))
        return placed

    def close(self) -> None:
        """Give the memory up; the agent's mapping of it stays good. May be repeated."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._bytes = np.empty(0, dtype=np.uint8)
