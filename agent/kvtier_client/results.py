"""What callers hand to the client and get back from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .arena import Chunk
from .protocol.messages import WHOLE_BLOCK, PageId, PagePlace, Reach, Tier

BufferLike = Any
"""Bytes in C order: whatever has the buffer protocol (bytes, memoryview, a numpy array), or a torch CPU tensor."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page to store."""

    hash: bytes
    """Of the block, 16 to 64 bytes."""
    data: BufferLike
    page: PageId = WHOLE_BLOCK[0]


@dataclass(frozen=True, slots=True)
class Found:
    """What a lookup found."""

    whole_blocks: int = 0
    """Leading blocks that can be had now."""
    dram_blocks: int = 0
    """Of these, how many leading ones lie in DRAM."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What `get_into` copied; nothing else in the buffers means anything."""

    blocks: int = 0
    """Leading blocks that were copied and verified."""
    tiers: tuple[Tier, ...] = ()
    """Where each of their pages was when it was asked for, block after block, pages as asked."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How far a put got."""

    stored_pages: int = 0
    """Pages that it stored."""
    known_pages: int = 0
    """Pages that were there already."""
    reached: Reach | None = None
    """How far every page of the put got; None: not all are in DRAM."""


class Held:
    """Pages in place in the arena, held until `release` or the end of a `with` block.

    `views` are read-only and valid memory for as long as anyone refers to them, but their content is
    the asked-for pages only while `intact()` says so: check after the copy, and use nothing that is not
    intact. Any thread may use it.
    """

    def __init__(
        self,
        pages_per_block: int = 1,
        places: tuple[tuple[Chunk, PagePlace], ...] = (),
        release: Callable[[], None] | None = None,
        count_overwritten: Callable[[], None] | None = None,
    ) -> None:
        self._pages_per_block = pages_per_block
        self._places = places
        self._release = release
        self._count_overwritten = count_overwritten

    @property
    def blocks(self) -> int:
        """Leading blocks that are held; 0 is a miss."""
        return len(self._places) // self._pages_per_block

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each page was when it was asked for, block after block, pages as asked."""
        return tuple(place.tier for _, place in self._places)

    @property
    def views(self) -> list[memoryview]:
        """Each page's bytes in place, in the order of `tiers`."""
        return [chunk.view(place) for chunk, place in self._places]

    def intact(self) -> int:
        """Leading blocks that nothing has overwritten up to now."""
        for index, (chunk, place) in enumerate(self._places):
            if not chunk.stands(place):
                count, self._count_overwritten = self._count_overwritten, None
                if count is not None:
                    count()
                return index // self._pages_per_block
        return self.blocks

    def release(self) -> None:
        """Give the pages back; the agent may then overwrite them. May be repeated. Does not raise."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
