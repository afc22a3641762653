"""The messages of the wire protocol, one class each. The format's page: docs/protocol.md.

Every message is a MessagePack map with its kind under "type". New fields go last and have a
default, so that a peer one minor release older or newer still understands what it knows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

PROTOCOL_VERSIONS: Final = (1, 1)
"""Lowest and highest protocol version that this code speaks."""

LAYOUT_BYTES: Final = 32
HASH_BYTES: Final = range(16, 65)
MAX_BLOCKS: Final = 32_768
"""Most hashes in one request."""


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
    """Which page of a block: its KV-cache group and its shard."""

    group: int = 0
    """0..2**32-1"""
    shard: int = 0
    """0..2**16-1"""


WHOLE_BLOCK: Final = (PageId(0, 0),)
"""The page of an engine with one group and one rank."""


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
    hashes: list[bytes]
    pages: tuple[PageId, ...] = WHOLE_BLOCK
    """The pages that make a block whole for the caller."""


class LookupReply(msgspec.Struct, frozen=True, tag="lookup_reply"):
    """Answers Lookup."""

    request_id: int
    whole_blocks: int
    """Leading blocks that are whole, 0..len(hashes)."""
    dram_blocks: int
    """Of these, how many lie whole in DRAM now."""


class Get(msgspec.Struct, frozen=True, tag="get"):
    """Bring the leading whole blocks of `hashes` into DRAM and hold them. Answered by GetReply."""

    request_id: int
    layout: bytes
    hashes: list[bytes]
    deadline_ms: int
    """What has not arrived by then is left out of the reply."""
    pages: tuple[PageId, ...] = WHOLE_BLOCK


class PagePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a held page lies in the arena."""

    chunk: int
    offset: int
    """Of the payload in the chunk file, in bytes."""
    size: int
    """Payload bytes."""
    generation_offset: int
    """Of the slot's 64-bit little-endian generation in the chunk file."""
    generation: int
    """The copy is good if the slot still shows this number after it."""
    tier: Tier
    """Where the page was when the request came."""


class GetReply(msgspec.Struct, frozen=True, tag="get_reply"):
    """Answers Get. `places` has blocks * len(pages) entries, block after block, pages as asked."""

    request_id: int
    blocks: int
    places: list[PagePlace]
    hold_id: int = 0
    """Release it when done; 0: nothing is held."""
    hold_ms: int = 0
    """The hold lapses by itself after this time."""


class Chunks(msgspec.Struct, frozen=True, tag="chunks"):
    """Sent before a reply that names chunks new to the connection.

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
    page: PageId = PageId(0, 0)


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Store pages of consecutive blocks of one chain, in chain order. Answered by PutReply.

    Pages of one block stand together; each block's parent is the block before it in the list.
    Until the reply the client leaves the staging alone.
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
    """How far every stored or known page got; None: not all are in DRAM."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Answers a request that has no result."""

    request_id: int


ToAgent = Hello | Lookup | Get | Release | Stage | Put
ToClient = HelloReply | Handover | Refused | LookupReply | GetReply | Chunks | PutReply | Done
