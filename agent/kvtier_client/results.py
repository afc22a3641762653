"""What callers hand to the client and get back from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .placed import NO_PAGES, PlacedPages
from .protocol.messages import WHOLE_BLOCK, PageId, Reach, Tier
from .protocol.places import blocks_kept, needed_pages

BufferLike = Any
"""Bytes in C order: whatever has the buffer protocol (bytes, memoryview, a numpy array), or a torch CPU tensor."""

Visit = Callable[[int, list[memoryview]], None]
"""What `read` calls with a part of the answer: the number of its first block, and its pages in place, block after
block, pages as asked. The views are read-only, and may be another page's bytes by the time they were read: nothing made
of them counts before `read` has returned."""


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
    offered_blocks: int = 0
    """Of the whole ones, how many leading ones are worth restoring: to recompute the rest is faster."""


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


class _Releasable:
    """Something that the agent keeps until it is released. Any thread may use it."""

    def __init__(self, release: Callable[[], None] | None) -> None:
        self._release = release

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Hold(_Releasable):
    """Leading blocks that the agent keeps in DRAM until `release`, the end of a `with` block, or `seconds` have passed.

    Other processes of the same pod read them by its `id`: `get(..., hold=id)`.
    """

    def __init__(
        self, blocks: int = 0, hold_id: int = 0, seconds: float = 0.0, release: Callable[[], None] | None = None
    ) -> None:
        super().__init__(release)
        self.blocks = blocks
        """0 is a miss."""
        self.id = hold_id
        """0: nothing is held."""
        self.seconds = seconds
        """From the agent's answer on; the hold then ends by itself."""


class Held(_Releasable):
    """Pages in place in the arena, held until `release` or the end of a `with` block.

    `views` are read-only and valid memory for as long as anyone refers to them, but their content is
    the asked-for pages only while `intact()` says so: check after the copy, and use nothing that is not
    intact.
    """

    def __init__(
        self,
        blocks: int = 0,
        pages: Sequence[PageId] = WHOLE_BLOCK,
        placed: PlacedPages = NO_PAGES,
        hold_id: int = 0,
        release: Callable[[], None] | None = None,
        count_overwritten: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(release)
        self.blocks = blocks
        """Leading blocks that are held; 0 is a miss."""
        self.hold_id = hold_id
        """Of what keeps them: their own hold, or the one that was asked for."""
        self._pages = pages
        self._placed = placed
        self._count_overwritten = count_overwritten
        self._views: list[memoryview] | None = None

    @property
    def keys(self) -> list[tuple[int, PageId]]:
        """Each page's block number and which page of it, in the order of `views`: block after block, pages as asked.

        A trailing page is there for the last blocks only.
        """
        return list(needed_pages(self.blocks, self._pages))

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each page was when it was asked for, in the order of `views`."""
        return self._placed.tiers

    @property
    def views(self) -> list[memoryview]:
        """Each page's bytes in place, made when first asked for."""
        if self._views is None:
            self._views = self._placed.views()
        return self._views

    def intact(self) -> int:
        """Leading blocks that nothing has overwritten up to now."""
        good = self._placed.good(len(self._placed))
        if good < len(self._placed):
            count, self._count_overwritten = self._count_overwritten, None
            if count is not None:
                count()
        return blocks_kept(self.blocks, self._pages, good)
