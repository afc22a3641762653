"""The messages of the wire protocol, one class each. The format's page: docs/protocol.md.

Every message is a MessagePack map with its kind under "type". New fields go last and have a
default, so that a peer one minor release older or newer still understands what it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

PROTOCOL_VERSIONS: Final = (1, 1)
"""Lowest and highest protocol version that this code speaks."""

LAYOUT_BYTES: Final = 32
HASH_BYTES: Final = range(16, 65)
MAX_BLOCKS: Final = 32_768
"""Most hashes in one request, and most places in its answer."""
MAX_PAGES_OF_BLOCK: Final = 1024
"""Most pages that a block has, and that a request names of each."""


class Tier(StrEnum):
    """A tier that the agent holds."""

    DRAM = "dram"
    NVME = "nvme"


class Reach(StrEnum):
    """How far a put got, in rising order.

    `dram`: committed in the arena, and so safe from a killed store. `sealed`: its run is complete on
    the medium. `flushed`: and the device was told to flush, so safe from a lost node's memory.
    """

    DRAM = "dram"
    SEALED = "sealed"
    FLUSHED = "flushed"


class RefusalCode(StrEnum):
    """Why a request was refused. Clients may act on the code; the message is for people."""

    VERSION = "version"
    MALFORMED = "malformed"
    NOT_GRANTED = "not_granted"
    NOT_READY = "not_ready"
    UNAVAILABLE = "unavailable"
    PARENT_ABSENT = "parent_absent"
    SIZE_MISMATCH = "size_mismatch"
    BAD_STAGING = "bad_staging"
    NO_ROOM = "no_room"
    LIMIT = "limit"


class PageId(msgspec.Struct, frozen=True, array_like=True):
    """Which page of a block: its KV-cache group, its shard, and which blocks of a prefix need it."""

    group: int = 0
    """0..2**32-1"""
    shard: int = 0
    """0..2**16-1"""
    trailing: int = 0
    """0: every block needs the page (`full`). n: only the last n blocks of a prefix do (`trailing(n)`).

    0..2**32-1, and the same for one group of a layout always.
    """


WHOLE_BLOCK: Final = (PageId(),)
"""The page of an engine with one group and one rank."""


class HashList(msgspec.Struct, frozen=True, array_like=True):
    """Block hashes of one length, one behind the other: thousands are one string to both sides."""

    length: int
    """Bytes of each."""
    packed: bytes

    @classmethod
    def of(cls, hashes: Sequence[bytes]) -> HashList:
        """Pack them. Raises ValueError when their lengths differ, TypeError when one is not bytes."""
        length = len(hashes[0]) if hashes else HASH_BYTES.start
        packed = b"".join(hashes)
        if set(map(len, hashes)) - {length} or len(packed) != length * len(hashes):
            raise ValueError("hashes of one list have one length")
        return cls(length, packed)

    def __len__(self) -> int:
        return len(self.packed) // self.length

    def split(self) -> list[bytes]:
        """Each by itself."""
        return [self.packed[at : at + self.length] for at in range(0, len(self.packed), self.length)]

    def part(self, start: int, stop: int) -> HashList:
        """Those from `start` up to `stop`, as far as there are so many."""
        if start == 0 and stop >= len(self):
            return self
        return HashList(self.length, self.packed[start * self.length : stop * self.length])


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First frame of a client."""

    versions: tuple[int, int]
    """Lowest and highest version that the client speaks."""
    client: str = ""
    """Name and version, for the agent's log."""
    capabilities: tuple[str, ...] = ()


class HelloReply(msgspec.Struct, frozen=True, tag="hello_reply"):
    """The agent's answer: this version will be spoken, with this pool."""

    version: int
    server: str
    pool: str
    """NAMESPACE/NAME, for people."""
    pool_uid: str
    capabilities: tuple[str, ...] = ()


class Handover(msgspec.Struct, frozen=True, tag="handover"):
    """The sidecar's answer to a hello: one descriptor, connected to the agent, lies beside it."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request with this id, or the hello (id 0), was refused and changed nothing."""

    code: RefusalCode
    message: str
    request_id: int = 0


class Lookup(msgspec.Struct, frozen=True, tag="lookup"):
    """How many leading blocks of this chain are whole here? Answered by LookupReply."""

    request_id: int
    layout: bytes
    hashes: HashList
    pages: tuple[PageId, ...] = WHOLE_BLOCK
    """The pages that make a block whole for the caller."""
    prefetch: bool = False
    """Start bringing into DRAM what is found below it."""


class LookupReply(msgspec.Struct, frozen=True, tag="lookup_reply"):
    """Answers Lookup."""

    request_id: int
    whole_blocks: int
    """Leading blocks that are whole, 0..len(hashes)."""
    dram_blocks: int
    """Of these, how many lie whole in DRAM now."""
    offered_blocks: int
    """Of `whole_blocks`, how many are worth restoring: to recompute the rest is faster."""


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Bring the leading whole blocks of `hashes` into DRAM and hold them. Answered by GetReply."""

    request_id: int
    layout: bytes
    hashes: HashList
    deadline_ms: int
    """What has not arrived by then is left out of the reply."""
    pages: tuple[PageId, ...] = WHOLE_BLOCK
    stream: bool = False
    """Answer in parts, as the blocks arrive. Only where no page is trailing."""
    hold_id: int = 0
    """Keep what the answer names under this hold of the same pod, whose end stays; 0, or one that ended: a new hold."""


class GetReply(msgspec.Struct, frozen=True, tag="get_reply"):
    """Answers Get; with `stream`, once for each part, in chain order."""

    request_id: int
    blocks: int
    """Of this part, 0 or more."""
    places: bytes
    """Where the pages of these blocks lie: `places.PLACE` records, as many as `places.place_count` says."""
    hold_id: int = 0
    """Release it when done, the same in all parts; 0: nothing is held."""
    hold_ms: int = 0
    """The hold lapses by itself after this time."""
    more: bool = False
    """Another part follows. Never without `stream`."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """As Get, without naming places: they can be asked for by the hold's id. Answered by HoldReply."""

    request_id: int
    layout: bytes
    hashes: HashList
    deadline_ms: int
    pages: tuple[PageId, ...] = WHOLE_BLOCK


class HoldReply(msgspec.Struct, frozen=True, tag="hold_reply"):
    """Answers Hold."""

    request_id: int
    blocks: int
    """Leading blocks that are held in DRAM."""
    hold_id: int = 0
    """0: nothing is held. Good on every connection of the same pod, whichever process has it."""
    hold_ms: int = 0


class Prefetch(msgspec.Struct, frozen=True, tag="prefetch"):
    """Start bringing the leading whole blocks into DRAM. Answered at once, by PrefetchReply."""

    request_id: int
    layout: bytes
    hashes: HashList
    pages: tuple[PageId, ...] = WHOLE_BLOCK


class PrefetchReply(msgspec.Struct, frozen=True, tag="prefetch_reply"):
    """Answers Prefetch."""

    request_id: int
    blocks: int
    """Leading blocks that are in DRAM or on their way."""


class Chunks(msgspec.Struct, frozen=True, tag="chunks"):
    """Sent at any time, and before the first reply that names one of `ids` on the connection.

    One read-only descriptor lies beside for each of `ids`, in order, at most MAX_CHUNKS.
    Chunks in `gone` will not be named again and may be unmapped.
    """

    ids: list[int]
    gone: list[int] = []


MAX_CHUNKS: Final = 128
"""Descriptors beside one Chunks frame (the kernel takes 253)."""


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Give a hold back. Not answered."""

    hold_id: int


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    """Offer staging memory: one memfd beside, sealed against shrinking and growing.

    Answered by Done. A connection has one staging; a second Stage replaces it.
    """

    request_id: int
    bytes: int


class PutPage(msgspec.Struct, frozen=True, array_like=True):
    """One page in the staging."""

    hash: bytes
    offset: int
    size: int
    page: PageId = PageId()


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Store pages of consecutive blocks of one chain, in chain order. Answered by PutReply.

    Pages of one block stand together; each block's parent is the block before it in the list.
    Until the reply the client leaves these pages of the staging alone.
    """

    request_id: int
    layout: bytes
    parent: bytes | None
    """Hash of the block before the first one; None: the first block starts the chain."""
    pages: list[PutPage]
    reach: Reach = Reach.DRAM
    """Reply when this is reached, or at the deadline with what was reached."""
    deadline_ms: int = 10_000


class PutReply(msgspec.Struct, frozen=True, tag="put_reply"):
    """Answers Put."""

    request_id: int
    stored_pages: int
    """Pages that this put stored."""
    known_pages: int
    """Pages that were there already; they are left as they are."""
    reached: Reach | None
    """How far every stored or known page got, with the same full pages of all blocks before; None: not all are in DRAM.

    A page is of no use without those before it, and is lost with them.
    """


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Delete these blocks and all below them, in every tier. Answered by Done, when that is durable."""

    request_id: int
    layout: bytes
    hashes: HashList
    """In any order; what is not here is passed over."""


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """Keep the leading blocks that are here for `seconds`. Answered by PinReply."""

    request_id: int
    layout: bytes
    hashes: HashList
    seconds: int
    """0 unpins them."""


class PinReply(msgspec.Struct, frozen=True, tag="pin_reply"):
    """Answers Pin."""

    request_id: int
    blocks: int
    """Leading blocks that are pinned (or unpinned) now; a pool's pins are limited to a part of its quota."""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How fast the engine computes what it would otherwise restore. Not answered."""

    layout: bytes
    block_tokens: int
    prefill_tokens_per_s: float
    """Measured on tokens behind the first `at_depth` of a prompt."""
    at_depth: int
    bytes_per_token: float
    """Of KV cache, all pages of a block together."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Answers a request that has no result."""

    request_id: int


ToAgent = Hello | Lookup | Get | Hold | Prefetch | Release | Stage | Put | Delete | Pin | Report
ToClient = (
    HelloReply
    | Handover
    | Refused
    | LookupReply
    | GetReply
    | HoldReply
    | PrefetchReply
    | Chunks
    | PutReply
    | PinReply
    | Done
)
