"""Gets that use pages as their part of the answer arrives, and verify them after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from .buffers import Span, Spans
from .connection import Connection
from .copying import Copies
from .failures import GENERATION, PROTOCOL, SIZE_MISMATCH, Deadline, Failure
from .flows import Copy, Flow, Run, Send, answer_to, tell
from .placed import PlacedPages
from .protocol.frames import encode_frame
from .protocol.messages import Get, GetReply, HashList, PageId, Release, Tier
from .protocol.places import blocks_kept, needed_pages, place_count
from .results import Restored, Visit


def check_part(reply: GetReply, pages: Sequence[PageId], asked: int, connection: Connection) -> PlacedPages:
    """Where the pages of one part lie.

    Raises Failure when the part is not one of an answer to `asked` blocks.
    """
    if not 0 <= reply.blocks <= asked:
        raise Failure(PROTOCOL, f"the agent named {reply.blocks} blocks, of at most {asked}")
    return connection.chunks.locate(reply.places, place_count(reply.blocks, pages))


class PartwiseGet(ABC):
    """One get and how far it got: after a failure in the middle, what was verified before it still counts.

    Used by one thread at a time.
    """

    def __init__(
        self, layout: bytes, hashes: HashList, pages: tuple[PageId, ...], hold_id: int, count: Callable[[str], None]
    ) -> None:
        """`count` counts a miss by its cause."""
        self._layout = layout
        self._hashes = hashes
        self._pages = pages
        self._hold_id = hold_id
        self._count = count
        self._blocks = 0
        self._tiers: list[Tier] = []
        self._ended = False
        """A page was not good, so that what comes after it is of no use."""

    @abstractmethod
    def _use(self, part: PlacedPages, first_block: int, blocks: int) -> Flow[int]:
        """Use the pages of `blocks` blocks from `first_block` on: how many leading pages could be used."""

    def result(self) -> Restored:
        """What has been used and verified up to now."""
        return Restored(self._blocks, tuple(self._tiers))

    def flow(self, connection: Connection, deadline: Deadline) -> Flow[None]:
        """Ask, use each part as it comes, and give the hold back.

        Raises Failure.
        """
        stream = not any(page.trailing for page in self._pages)
        request = Get(
            connection.next_request_id(),
            self._layout,
            self._hashes,
            deadline.answer_within_ms(),
            self._pages,
            stream,
            self._hold_id,
        )
        yield Send(connection, encode_frame(request))
        named = held = 0
        not_to_release = self._hold_id
        while True:
            reply = yield from answer_to(connection, request, GetReply)
            part = check_part(reply, self._pages, len(self._hashes) - named, connection)
            if reply.more and not stream:
                raise Failure(PROTOCOL, "the agent answered in parts, which was not asked for")
            if len(part) and not self._ended:
                yield from self._take(part, named, reply.blocks)
            named += reply.blocks
            held = reply.hold_id or held
            # Also at the first page that is not good: nobody needs what the agent still reads.
            if held not in (0, not_to_release) and (self._ended or not reply.more):
                yield from tell(connection, Release(held))
                not_to_release = held
            if not reply.more:
                return

    def _take(self, part: PlacedPages, first_block: int, blocks: int) -> Flow[None]:
        """Use a part, and count what is still good after that."""
        used = yield from self._use(part, first_block, blocks)
        good = part.good(used)
        if good < used:
            self._count(GENERATION)
        elif used < len(part):
            self._count(SIZE_MISMATCH)
        kept = blocks_kept(blocks, self._pages, good)
        self._ended = kept < blocks
        self._blocks += kept
        self._tiers += part.tiers[: place_count(kept, self._pages)]


class CopyingGet(PartwiseGet):
    """Copies pages into the caller's buffers."""

    def __init__(
        self,
        layout: bytes,
        hashes: HashList,
        pages: tuple[PageId, ...],
        hold_id: int,
        count: Callable[[str], None],
        targets: Spans,
    ) -> None:
        """`targets` are the buffers, one for each page of each block; (0, 0) is none."""
        super().__init__(layout, hashes, pages, hold_id, count)
        self._targets, self._owners = targets

    def _use(self, part: PlacedPages, first_block: int, blocks: int) -> Flow[int]:
        targets = self._targets_of(first_block, blocks)
        fitting = _fitting(targets, part.sizes)
        moves = [
            (target, source, size) for (target, size), source in zip(targets[:fitting], part.addresses(), strict=False)
        ]
        yield Copy(Copies(moves, (self._owners, part)), parallel=True)
        return fitting

    def _targets_of(self, first_block: int, blocks: int) -> Sequence[Span]:
        width = len(self._pages)
        if not any(page.trailing for page in self._pages):
            return self._targets[first_block * width : (first_block + blocks) * width]
        columns = {page: column for column, page in enumerate(self._pages)}
        return [self._targets[block * width + columns[page]] for block, page in needed_pages(blocks, self._pages)]


class VisitingGet(PartwiseGet):
    """Shows pages in place to the caller."""

    def __init__(
        self,
        layout: bytes,
        hashes: HashList,
        pages: tuple[PageId, ...],
        hold_id: int,
        count: Callable[[str], None],
        visit: Visit,
    ) -> None:
        super().__init__(layout, hashes, pages, hold_id, count)
        self._visit = visit

    def _use(self, part: PlacedPages, first_block: int, blocks: int) -> Flow[int]:
        del blocks
        yield Run(partial(self._visit, first_block, part.views()))
        return len(part)


def _fitting(targets: Sequence[Span], sizes: Sequence[int]) -> int:
    """How many leading pages have a buffer of their size."""
    for index, ((_, room), size) in enumerate(zip(targets, sizes, strict=True)):
        if room != size:
            return index
    return len(sizes)
