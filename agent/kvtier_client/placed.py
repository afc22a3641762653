"""Where the pages of one answer lie in this process, checked once and for all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from .arena import GENERATION_BYTES, Chunk
from .failures import PROTOCOL, Failure
from .protocol.messages import Tier
from .protocol.places import PLACE, TIERS

_RECORD: Final = np.dtype(
    [
        ("chunk", "<u8"),
        ("offset", "<u8"),
        ("generation_offset", "<u8"),
        ("generation", "<u8"),
        ("size", "<u4"),
        ("tier", "<u4"),
    ]
)
_GENERATION: Final = np.uint64(GENERATION_BYTES)
_WITHIN_WORD: Final = np.uint64(GENERATION_BYTES - 1)
assert _RECORD.itemsize == PLACE.size


class PlacedPages:
    """Pages at their places, in the order of the answer. Immutable; any thread may use it.

    Columns rather than an object for each page: an answer may have tens of thousands. What a caller may not ask for
    is made when it does.
    """

    def __init__(self, chunks: Sequence[Chunk], index: npt.NDArray[np.intp], fields: npt.NDArray[np.void]) -> None:
        """Checked records, and which of `chunks` each lies in."""
        self._chunks = [chunks[number] for number in index.tolist()]
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of each page."""
        sizes: list[int] = self._fields["size"].tolist()
        return sizes

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each page was when it was asked for. What this client does not know of is the lowest it knows."""
        numbers = self._fields["tier"].tolist()
        if not any(numbers):
            return TIERS[:1] * len(numbers)
        return tuple([TIERS[min(number, len(TIERS) - 1)] for number in numbers])

    def views(self) -> list[memoryview]:
        """Each page's bytes in place, read-only. They are that page's while its generation stands."""
        parts = zip(self._chunks, self._offsets, self.sizes, strict=True)
        return [chunk.bytes[offset : offset + size] for chunk, offset, size in parts]

    def addresses(self) -> list[int]:
        """Where each page begins in this process. Good as long as this object lives."""
        return [chunk.address + offset for chunk, offset in zip(self._chunks, self._offsets, strict=True)]

    def good(self, limit: int) -> int:
        """How many of the first `limit` pages lead up to the first whose slot holds another page by now.

        Right after a copy because amd64 keeps loads in order: whoever saw a byte of the slot's next page sees the
        generation that was changed before it. docs/protocol.md, "Reading in place".
        """
        parts = zip(self._chunks[:limit], self._generations, strict=False)
        for index, (chunk, (word, generation)) in enumerate(parts):
            if chunk.words[word] != generation:
                return index
        return min(limit, len(self))

    @cached_property
    def _offsets(self) -> list[int]:
        offsets: list[int] = self._fields["offset"].tolist()
        return offsets

    @cached_property
    def _generations(self) -> list[tuple[int, int]]:
        """Of each page's slot: the index of the generation among the chunk's words, and what has to stand there."""
        words = self._fields["generation_offset"] // GENERATION_BYTES
        return list(zip(words.tolist(), self._fields["generation"].tolist(), strict=True))


NO_PAGES: Final = PlacedPages([], np.empty(0, np.intp), np.empty(0, _RECORD))


class ChunkTable:
    """The chunks that the agent named on one connection, by its ids. Used by one thread at a time."""

    def __init__(self) -> None:
        self._by_id: dict[int, Chunk] = {}
        self._ids = np.empty(0, np.uint64)
        self._sizes = np.empty(0, np.uint64)
        self._chunks: list[Chunk] = []
        self._changed = False

    def add(self, number: int, chunk: Chunk) -> None:
        """From now on `number` is `chunk`."""
        self._by_id[number] = chunk
        self._changed = True

    def forget(self, numbers: Iterable[int]) -> None:
        """These will not be named again."""
        for number in numbers:
            self._changed |= self._by_id.pop(number, None) is not None

    def locate(self, records: bytes, count: int) -> PlacedPages:
        """The `count` pages whose place records an answer brought.

        Raises Failure when there are more or fewer, or one lies outside of what the agent sent.
        """
        if not count and not records:
            return NO_PAGES
        if not count or len(records) != count * PLACE.size:
            raise Failure(PROTOCOL, f"the agent named {len(records) / PLACE.size:g} places where {count} are due")
        self._rebuild()
        fields = np.frombuffer(records, _RECORD)
        ids, offsets, words, lengths = fields["chunk"], fields["offset"], fields["generation_offset"], fields["size"]
        index = self._ids.searchsorted(ids)
        if not len(self._ids) or (self._ids.take(index, mode="clip") != ids).any():
            raise Failure(PROTOCOL, "the agent named a chunk that it did not send")
        sizes = self._sizes[index]
        # No sum can overflow: an offset is within its chunk first, and a size has 32 bits.
        inside = (offsets < sizes) & (offsets + lengths <= sizes) & (lengths > 0)
        inside &= (words <= sizes - _GENERATION) & (words & _WITHIN_WORD == 0)
        if not inside.all():
            raise Failure(PROTOCOL, "the agent named a place outside its chunk")
        return PlacedPages(self._chunks, index, fields)

    def _rebuild(self) -> None:
        if not self._changed:
            return
        ids = sorted(self._by_id)
        self._chunks = [self._by_id[number] for number in ids]
        self._ids = np.array(ids, np.uint64)
        self._sizes = np.array([chunk.size for chunk in self._chunks], np.uint64)
        self._changed = False
