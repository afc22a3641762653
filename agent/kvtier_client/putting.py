"""A put, piece by piece: while the agent takes one piece from the staging, the next one is copied into it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .areas import InPlace
from .buffers import Spans
from .connection import Connection
from .copying import Copies
from .failures import PROTOCOL, Deadline, Failure, RequestRefused
from .flows import Copy, Flow, Send, answer_to, ask
from .protocol.frames import encode_frame
from .protocol.messages import MAX_BLOCKS, Done, Put, PutPage, PutReply, Reach, RefusalCode, Stage
from .results import Page, Stored
from .staging import Lease, Staging, StagingPool, aligned

PIECE_BYTES: Final = 8 << 20
"""Long enough for the answer's way not to matter, short enough for two to lie in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of whole blocks that is put at once: pages `first` up to `after` of the put."""

    parent: bytes | None
    first: int
    after: int
    staging_bytes: int
    """What its pages take in staging, each aligned."""


def cut_into_pieces(
    parent: bytes | None, pages: Sequence[Page], sizes: Sequence[int], piece_bytes: int, capacity: int
) -> list[Piece]:
    """Pieces of at most `piece_bytes`, or of one larger block, in chain order. Pure.

    Each one's parent is the last block of the piece before. `sizes` are the pages' bytes. Raises ValueError when one
    block alone exceeds `capacity` bytes.
    """
    pieces: list[Piece] = []
    begin = used = 0
    for first, after in _blocks(pages):
        needed = sum(aligned(size) for size in sizes[first:after])
        if needed > capacity:
            raise ValueError(f"block {pages[first].hash.hex()} needs {needed} bytes of staging, of {capacity}")
        if begin < first and (used + needed > piece_bytes or after - begin > MAX_BLOCKS):
            pieces.append(Piece(parent, begin, first, used))
            parent, begin, used = pages[first - 1].hash, first, 0
        used += needed
    if begin < len(pages):
        pieces.append(Piece(parent, begin, len(pages), used))
    return pieces


def last_tells_of_all(pages: Sequence[Page], pieces: Sequence[Piece]) -> bool:
    """Whether how far the last piece got is how far all got: they are of the same full pages. Pure."""
    kinds = [{page.page for page in pages[piece.first : piece.after]} for piece in pieces]
    return all(kind == kinds[-1] for kind in kinds) and not any(page.trailing for page in (kinds[-1] if kinds else ()))


def _blocks(pages: Sequence[Page]) -> list[tuple[int, int]]:
    """Where each block's pages begin and end."""
    starts = [i for i, page in enumerate(pages) if i == 0 or page.hash != pages[i - 1].hash]
    return list(itertools.pairwise([*starts, len(pages)]))


class Putting:
    """One put and how far it got. Used by one thread at a time."""

    def __init__(
        self,
        layout: bytes,
        pages: Sequence[Page],
        sources: Spans,
        pieces: Sequence[Piece],
        reach: Reach,
        in_place: InPlace | None,
    ) -> None:
        """`sources` are where the pages' bytes lie."""
        self._layout = layout
        self._pages = pages
        self._spans, self._owners = sources
        self._pieces = pieces
        self._reach = reach
        self._in_place = in_place
        self._replies: list[PutReply] = []
        self._last_tells = last_tells_of_all(pages, pieces)

    @property
    def lease_bytes(self) -> int:
        """The staging that it needs before it can begin; 0: its pages lie in staging already."""
        return 0 if self._in_place else max((piece.staging_bytes for piece in self._pieces), default=0)

    def result(self) -> Stored:
        """What has been stored up to now."""
        replies = self._replies
        reached = [reply.reached for reply in replies]
        if self._last_tells and None not in reached:
            reached = reached[-1:]
        return Stored(
            sum(reply.stored_pages for reply in replies),
            sum(reply.known_pages for reply in replies),
            _least(reached, self._reach) if len(replies) == len(self._pieces) else None,
        )

    def flow(
        self, connection: Connection, deadline: Deadline, stagings: StagingPool, lease: Lease | None
    ) -> Flow[None]:
        """Put the pieces one after the other, from `lease` and a second one where that is to be had.

        Raises Failure. A staging that the agent may still read is then retired: what it stores must not change
        under it.
        """
        if self._in_place:
            yield from self._put_in_place(self._in_place, connection, deadline, stagings)
        elif lease is not None:
            yield from self._copy_and_put(lease, connection, deadline, stagings)

    def _put_in_place(
        self, in_place: InPlace, connection: Connection, deadline: Deadline, stagings: StagingPool
    ) -> Flow[None]:
        for piece in self._pieces:
            offsets = in_place.offsets[piece.first : piece.after]
            with _Reading(stagings, in_place.staging) as reading:
                put = self._message(connection, piece, offsets, deadline)
                yield from _offer(connection, in_place.staging)
                reading.begun = True
                reply = yield from ask(connection, put, PutReply)
            self._take(reply, len(put.pages))

    def _copy_and_put(
        self, lease: Lease, connection: Connection, deadline: Deadline, stagings: StagingPool
    ) -> Flow[None]:
        yield self._copy_of(self._pieces[0], lease)
        spare = stagings.try_lease(self.lease_bytes, lease.staging) if len(self._pieces) > 1 else None
        try:
            for number, piece in enumerate(self._pieces):
                following = self._pieces[number + 1] if number + 1 < len(self._pieces) else None
                with _Reading(stagings, lease.staging) as reading:
                    put = self._message(connection, piece, self._offsets(piece, lease), deadline)
                    yield from _offer(connection, lease.staging)
                    reading.begun = True
                    yield Send(connection, encode_frame(put))
                    if following and spare:
                        yield self._copy_of(following, spare)
                    reply = yield from answer_to(connection, put, PutReply)
                self._take(reply, len(put.pages))
                if following and spare:
                    lease, spare = spare, lease
                elif following:
                    yield self._copy_of(following, lease)
        finally:
            if spare is not None:
                # One of the two is the caller's, who frees it too: a lease is given back once.
                spare.free()
                lease.free()

    def _copy_of(self, piece: Piece, lease: Lease) -> Copy:
        begin = lease.staging.address
        moves = [
            (begin + offset, address, size)
            for offset, (address, size) in zip(
                self._offsets(piece, lease), self._spans[piece.first : piece.after], strict=True
            )
        ]
        # The agent's movers are at work on the piece before, and have more to do: no second thread here.
        return Copy(Copies(moves, (self._owners, lease.view)), parallel=False)

    def _offsets(self, piece: Piece, lease: Lease) -> list[int]:
        sizes = [aligned(size) for _, size in self._spans[piece.first : piece.after]]
        return list(itertools.accumulate(sizes[:-1], initial=lease.offset))

    def _message(self, connection: Connection, piece: Piece, offsets: Sequence[int], deadline: Deadline) -> Put:
        pages = [
            PutPage(page.hash, offset, size, page.page)
            for page, offset, (_, size) in zip(
                self._pages[piece.first : piece.after], offsets, self._spans[piece.first : piece.after], strict=True
            )
        ]
        request_id = connection.next_request_id()
        reach = Reach.DRAM if self._last_tells and piece is not self._pieces[-1] else self._reach
        return Put(request_id, self._layout, piece.parent, pages, reach, deadline.answer_within_ms())

    def _take(self, reply: PutReply, pages: int) -> None:
        if min(reply.stored_pages, reply.known_pages) < 0 or reply.stored_pages + reply.known_pages > pages:
            raise Failure(PROTOCOL, f"the agent's answer to {pages} pages makes no sense: {reply}")
        self._replies.append(reply)


class _Reading:
    """Retires the staging when the agent may go on reading it: the put was begun and is not answered."""

    def __init__(self, stagings: StagingPool, staging: Staging) -> None:
        self._stagings = stagings
        self._staging = staging
        self.begun = False

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestRefused):
            if error.code is RefusalCode.BAD_STAGING:
                self._stagings.retire(self._staging)
        elif error is not None and self.begun:
            self._stagings.retire(self._staging)


def _offer(connection: Connection, staging: Staging) -> Flow[None]:
    """Offer the staging where this connection has not seen it."""
    if connection.staging is not staging:
        message = Stage(connection.next_request_id(), staging.size)
        yield from ask(connection, message, Done, (staging.descriptor,))
        connection.staging = staging


def _least(reaches: Sequence[Reach | None], asked: Reach) -> Reach | None:
    """How far all of them got; `asked` where there are none, and None where one got nowhere."""
    known = [reach for reach in reaches if reach is not None]
    return min(known, key=list(Reach).index, default=asked) if len(known) == len(reaches) else None
