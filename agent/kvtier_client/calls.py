"""Every call of the client: its arguments checked, its flow, and what it comes to when it fails.

Both faces of the client carry these out, each in its own way. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .areas import Areas
from .buffers import page_spans, writable_spans
from .checks import (
    check_chain,
    check_hashes,
    check_hold_id,
    check_layout,
    check_pages,
    check_pin_seconds,
    check_put,
    check_report,
)
from .connection import Connection
from .failures import GENERATION, PROTOCOL, Deadline, Failure
from .flows import Flow, ask, tell
from .protocol.messages import (
    MAX_BLOCKS,
    Delete,
    Done,
    Get,
    GetReply,
    HoldReply,
    Lookup,
    LookupReply,
    PageId,
    Pin,
    PinReply,
    Prefetch,
    PrefetchReply,
    Reach,
    Release,
    Report,
)
from .protocol.messages import Hold as HoldRequest
from .putting import PIECE_BYTES, Putting, cut_into_pieces
from .restoring import CopyingGet, PartwiseGet, VisitingGet, check_part
from .results import BufferLike, Found, Held, Hold, Page, Visit

Result = TypeVar("Result")
MOST_PUTS_AT_ONCE = 4
"""Of which each has half of its staging filled while the agent takes the other half."""


@dataclass(slots=True)
class Call(Generic[Result]):
    """One call that is ready to go."""

    flow: Callable[[Connection, Deadline], Flow[Result]] | None
    """What it does on a connection; None: there is nothing to do."""
    nothing: Callable[[], Result]
    """What a failure comes to."""


class Calls:
    """Makes the calls of one client. Thread-safe. Every method raises ValueError for wrong arguments."""

    def __init__(
        self, count: Callable[[str], None], release: Callable[[Connection, int], None], staging_bytes: int
    ) -> None:
        """`count` counts a miss by its cause, `release` gives a hold of a connection back."""
        self._count = count
        self._release = release
        self._staging_bytes = staging_bytes

    def lookup(self, layout: bytes, hashes: Sequence[bytes], pages: Sequence[PageId], prefetch: bool) -> Call[Found]:
        """How many leading blocks are here."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)

        def flow(connection: Connection, _: Deadline) -> Flow[Found]:
            request = Lookup(connection.next_request_id(), layout, asked, page_ids, prefetch)
            reply = yield from ask(connection, request, LookupReply)
            whole = reply.whole_blocks
            if not (0 <= reply.dram_blocks <= whole <= len(asked) and 0 <= reply.offered_blocks <= whole):
                raise Failure(PROTOCOL, f"the agent's answer to {len(asked)} blocks makes no sense: {reply}")
            return Found(whole, reply.dram_blocks, reply.offered_blocks)

        return Call(flow if asked else None, Found)

    def get(self, layout: bytes, hashes: Sequence[bytes], pages: Sequence[PageId], hold: int) -> Call[Held]:
        """Pages in place."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)
        check_hold_id(hold)

        def flow(connection: Connection, deadline: Deadline) -> Flow[Held]:
            answer_ms = deadline.answer_within_ms()
            request = Get(connection.next_request_id(), layout, asked, answer_ms, page_ids, hold_id=hold)
            reply = yield from ask(connection, request, GetReply)
            if reply.more:
                raise Failure(PROTOCOL, "the agent answered in parts, which was not asked for")
            placed = check_part(reply, page_ids, len(asked), connection)
            own = reply.hold_id if reply.hold_id != hold else 0
            release = self._releaser(connection, own) if own else None
            return Held(reply.blocks, page_ids, placed, reply.hold_id, release, lambda: self._count(GENERATION))

        return Call(flow if asked else None, lambda: Held(pages=page_ids))

    def get_into(
        self,
        layout: bytes,
        hashes: Sequence[bytes],
        buffers: Sequence[BufferLike | None],
        pages: Sequence[PageId],
        hold: int,
    ) -> tuple[PartwiseGet, Call[None]]:
        """Copies of pages; the first of the two says how far it got."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)
        targets = writable_spans(buffers, len(hashes) * len(page_ids))
        if (0, 0) in targets.spans and not any(page.trailing for page in page_ids):
            raise ValueError("only a trailing page may be without a buffer")
        copying = CopyingGet(layout, asked, page_ids, check_hold_id(hold), self._count, targets)
        return copying, Call(copying.flow if asked else None, lambda: None)

    def read(
        self, layout: bytes, hashes: Sequence[bytes], visit: Visit, pages: Sequence[PageId], hold: int
    ) -> tuple[PartwiseGet, Call[None]]:
        """Pages shown in place; the first of the two says how far it got."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)
        visiting = VisitingGet(layout, asked, page_ids, check_hold_id(hold), self._count, visit)
        return visiting, Call(visiting.flow if asked else None, lambda: None)

    def hold(self, layout: bytes, hashes: Sequence[bytes], pages: Sequence[PageId]) -> Call[Hold]:
        """Pages kept without saying where they are."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)

        def flow(connection: Connection, deadline: Deadline) -> Flow[Hold]:
            answer_ms = deadline.answer_within_ms()
            request = HoldRequest(connection.next_request_id(), layout, asked, answer_ms, page_ids)
            reply = yield from ask(connection, request, HoldReply)
            if not 0 <= reply.blocks <= len(asked):
                raise Failure(PROTOCOL, f"the agent holds {reply.blocks} blocks, of at most {len(asked)}")
            release = self._releaser(connection, reply.hold_id) if reply.hold_id else None
            return Hold(reply.blocks, reply.hold_id, reply.hold_ms / 1000, release)

        return Call(flow if asked else None, Hold)

    def release(self, hold: int) -> Call[bool]:
        """A hold that another process of the pod made."""
        check_hold_id(hold)

        def flow(connection: Connection, _: Deadline) -> Flow[bool]:
            yield from tell(connection, Release(hold))
            return True

        return Call(flow if hold else None, lambda: False)

    def prefetch(self, layout: bytes, hashes: Sequence[bytes], pages: Sequence[PageId]) -> Call[int]:
        """Blocks brought into DRAM without waiting for them."""
        page_ids = check_pages(pages)
        asked = check_chain(layout, hashes, page_ids)

        def flow(connection: Connection, _: Deadline) -> Flow[int]:
            request = Prefetch(connection.next_request_id(), layout, asked, page_ids)
            reply = yield from ask(connection, request, PrefetchReply)
            return _leading(reply.blocks, len(asked))

        return Call(flow if asked else None, lambda: 0)

    def pin(self, layout: bytes, hashes: Sequence[bytes], seconds: int) -> Call[int]:
        """Blocks that stay for a while."""
        check_pin_seconds(seconds)
        asked = check_hashes(layout, hashes).part(0, MAX_BLOCKS)

        def flow(connection: Connection, _: Deadline) -> Flow[int]:
            request = Pin(connection.next_request_id(), layout, asked, seconds)
            reply = yield from ask(connection, request, PinReply)
            return _leading(reply.blocks, len(asked))

        return Call(flow if asked else None, lambda: 0)

    def delete(self, layout: bytes, hashes: Sequence[bytes]) -> Call[bool]:
        """Blocks, and all below them, gone for good."""
        asked = check_hashes(layout, hashes)
        parts = [asked.part(at, at + MAX_BLOCKS) for at in range(0, len(asked), MAX_BLOCKS)]

        def flow(connection: Connection, _: Deadline) -> Flow[bool]:
            for part in parts:
                yield from ask(connection, Delete(connection.next_request_id(), layout, part), Done)
            return True

        return Call(flow if parts else None, lambda: not parts)

    def report(
        self, layout: bytes, block_tokens: int, prefill_tokens_per_s: float, at_depth: int, bytes_per_token: float
    ) -> Call[bool]:
        """An engine's speed."""
        check_layout(layout)
        check_report(block_tokens, prefill_tokens_per_s, at_depth, bytes_per_token)
        message = Report(layout, block_tokens, float(prefill_tokens_per_s), at_depth, float(bytes_per_token))

        def flow(connection: Connection, _: Deadline) -> Flow[bool]:
            yield from tell(connection, message)
            return True

        return Call(flow, lambda: False)

    def put(self, layout: bytes, parent: bytes | None, pages: Sequence[Page], reach: Reach, areas: Areas) -> Putting:
        """Pages stored; the result says how to and how far it got."""
        check_put(layout, parent, pages)
        sources = page_spans(pages)
        sizes = [size for _, size in sources.spans]
        in_place = areas.find(sources.spans, [page.hash for page in pages])
        piece_bytes = self._staging_bytes if in_place else self._piece_bytes
        pieces = cut_into_pieces(parent, pages, sizes, piece_bytes, self._staging_bytes)
        return Putting(layout, pages, sources, pieces, reach, in_place)

    @property
    def _piece_bytes(self) -> int:
        return min(PIECE_BYTES, self._staging_bytes // (2 * MOST_PUTS_AT_ONCE))

    def _releaser(self, connection: Connection, hold_id: int) -> Callable[[], None]:
        return lambda: self._release(connection, hold_id)


def _leading(blocks: int, asked: int) -> int:
    if not 0 <= blocks <= asked:
        raise Failure(PROTOCOL, f"the agent named {blocks} blocks, of at most {asked}")
    return blocks
