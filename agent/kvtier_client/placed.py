"""Where the pages of one answer lie in this process, checked once and for all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from operator import or_
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
_NUMBERS: Final = PLACE.size // 8
"""Of 64 bits in a record. The last one is a size below a tier, and so just the size of a page in DRAM."""
_FEW: Final = 128
"""Up to so many records Python's own numbers are quicker than numpy's steps."""
assert _RECORD.itemsize == PLACE.size


class PlacedPages:
    """Pages at their places, in the order of the answer. Immutable; any thread may use it.

    Columns rather than an object for each page: an answer may have tens of thousands. What a caller may not ask for
    is made when it does.
    """

    def __init__(self, chunks: Sequence[Chunk], records: bytes) -> None:
        """Checked records, and the chunk that each lies in."""
        self._chunks = chunks
        self._records = records

    def __len__(self) -> int:
        return len(self._chunks)

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

    def are_inside(self) -> bool:
        """Whether each page lies in its chunk, and its generation too."""
        offsets, words, lengths = (self._fields[name] for name in ("offset", "generation_offset", "size"))
        sizes = np.array([chunk.size for chunk in self._chunks], np.uint64)
        # No sum can overflow: an offset is within its chunk first, and a size has 32 bits.
        inside = (offsets < sizes) & (offsets + lengths <= sizes) & (lengths > 0)
        inside &= (words <= sizes - _GENERATION) & (words & _WITHIN_WORD == 0)
        return bool(inside.all())

    @cached_property
    def _fields(self) -> npt.NDArray[np.void]:
        return np.frombuffer(self._records, _RECORD)

    @cached_property
    def _offsets(self) -> list[int]:
        offsets: list[int] = self._fields["offset"].tolist()
        return offsets

    @cached_property
    def _generations(self) -> list[tuple[int, int]]:
        """Of each page's slot: the index of the generation among the chunk's words, and what has to stand there."""
        words = self._fields["generation_offset"] // GENERATION_BYTES
        return list(zip(words.tolist(), self._fields["generation"].tolist(), strict=True))


NO_PAGES: Final = PlacedPages([], b"")


class ChunkTable:
    """The chunks that the agent named on one connection, by its ids. Used by one thread at a time."""

    def __init__(self) -> None:
        self._by_id: dict[int, Chunk] = {}
        self._smallest: int | None = 0
        """Bytes of the smallest chunk; None: not known."""

    def add(self, number: int, chunk: Chunk) -> None:
        """From now on `number` is `chunk`."""
        self._by_id[number] = chunk
        self._smallest = None

    def forget(self, numbers: Iterable[int]) -> None:
        """These will not be named again."""
        for number in numbers:
            self._by_id.pop(number, None)
        self._smallest = None

    def locate(self, records: bytes, count: int) -> PlacedPages:
        """The `count` pages whose place records an answer brought.

        Raises Failure when there are more or fewer, or one lies outside of what the agent sent.
        """
        if not count and not records:
            return NO_PAGES
        if not count or len(records) != count * PLACE.size:
            raise Failure(PROTOCOL, f"the agent named {len(records) / PLACE.size:g} places where {count} are due")
        if self._smallest is None:
            self._smallest = min([chunk.size for chunk in self._by_id.values()], default=0)
        numbers = memoryview(records).cast("Q")
        few = numbers.tolist() if count <= _FEW else None
        try:
            chunks = [self._by_id[number] for number in (few or numbers)[::_NUMBERS]]
        except KeyError:
            raise Failure(PROTOCOL, "the agent named a chunk that it did not send") from None
        placed = PlacedPages(chunks, records)
        if not (few and _surely_inside(few, self._smallest)) and not placed.are_inside():
            raise Failure(PROTOCOL, "the agent named a place outside its chunk")
        return placed


def _surely_inside(numbers: Sequence[int], chunk_bytes: int) -> bool:
    """Whether the largest of each number, taken together, would lie in a chunk of this size: most answers' do."""
    offsets, words, sizes = numbers[1::_NUMBERS], numbers[2::_NUMBERS], numbers[4::_NUMBERS]
    return (
        max(offsets) + max(sizes) <= chunk_bytes
        and 0 not in sizes
        and max(words) + GENERATION_BYTES <= chunk_bytes
        and reduce(or_, words) % GENERATION_BYTES == 0
    )
