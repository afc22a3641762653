"""The index of one pool: prefix tree, places in DRAM and on nvme, eviction. Native; not thread-safe; does no I/O."""

from collections.abc import Sequence
from typing import Final, final

Key = tuple[int, int, int]
"""Group, shard, and n of `trailing(n)` (0: full)."""

Hashes = list[bytes] | tuple[int, bytes]
"""One by one; or the length of each, and all of them one behind the other."""

KNOWN: Final[int]
FRESH: Final[int]
BUSY: Final[int]
"""Of `check_put`: is there; is new; is being stored by someone else, or its parent is."""

class Refused(ValueError):
    """The request contradicts what is stored; args: code ("parent_absent", "size_mismatch", "malformed", "limit"),
    index of the page, message."""

@final
class Hold:
    """Pins on the pages of the leading whole blocks of one request. Released by `release` or when dropped."""

    blocks: int
    """Leading blocks that were whole in any tier when it was made (after `settle`: in DRAM)."""
    pages: list[int]
    """Page numbers, block after block, keys as asked (trailing keys only where needed)."""
    def ready_blocks(self) -> int:
        """Leading blocks whose pages are all resident now."""
    def missing(self) -> list[int]:
        """Pages that are neither resident nor filling, chain order."""
    def settle(self, blocks: int) -> None:
        """Keep the first `blocks` only, unpin the rest. For requests with trailing keys: the
        largest prefix <= blocks that is whole in DRAM."""
    def places(self, start: int, stop: int) -> list[tuple[int, int, int, int, int, bool]]:
        """Of resident blocks start..stop: chunk, payload offset, size, offset of the generation, generation, was it
        below DRAM when the hold was made."""
    def pack_places(self, start: int, stop: int) -> tuple[bytes, list[int]]:
        """As `places`, as records of the wire protocol (kvtier_client/protocol/places.py, "<QQQQII": chunk, payload
        offset, offset of the generation, generation, size, 0 or 1: was it below DRAM when the hold was made), and
        the distinct chunks that they name."""
    def bytes(self) -> tuple[int, int]:
        """Payload bytes that were in DRAM, and below it, when the hold was made."""
    def release(self) -> None: ...

@final
class Index:
    def __init__(self, policy: str) -> None:
        """policy: "default" or "lru"."""
    # figures (all exact, O(1))
    blocks: int
    dram_pages: int
    dram_bytes: int
    """Slot bytes of resident pages."""
    slots_in_use: int
    nvme_pages: int
    nvme_bytes: int
    pinned_bytes: int
    """Slot bytes under `pin_prefix`; holds and jobs are not counted."""
    evicted_pages: int
    """Pages that lost their DRAM copy to make room (reserve, read_plan, clear_chunk) since the index was made."""
    def index_bytes(self) -> int:
        """Heap that the index takes."""

    # lookups and gets
    def find(self, layout: bytes, hashes: Hashes, keys: Sequence[Key]) -> tuple[int, int]:
        """Whole leading blocks in any tier; leading blocks whole in DRAM. Raises Refused (malformed)."""
    def hold(self, layout: bytes, hashes: Hashes, keys: Sequence[Key], now: float) -> Hold:
        """Pin and touch (policy: a hit) the leading whole blocks. now: unix seconds, for chunks' and TTL ages."""
    def touch(self, layout: bytes, hashes: Hashes, now: float) -> None:
        """As `hold` does for the policy: all pages of the leading blocks that are there are of use."""
    def pin(self, pages: Sequence[int]) -> None:
        """Keep these page numbers, and the pages' slots, until `unpin`, whatever becomes of the pages."""
    def unpin(self, pages: Sequence[int]) -> None: ...

    # puts
    def check_put(
        self, layout: bytes, parent: bytes | None, pages: Sequence[tuple[bytes, int, int, int, int]]
    ) -> list[int]:
        """Per page (hash, group, shard, trailing, size) KNOWN, FRESH or BUSY. Raises Refused."""
    def reserve(
        self,
        layout: bytes,
        parent: bytes | None,
        pages: Sequence[tuple[bytes, int, int, int, int]],
        start: int,
        stop: int,
        now: float,
        max_slots: int,
    ) -> tuple[list[tuple[int, int]], int, bool]:
        """Take slots for the FRESH ones of `pages[start:stop]`, evicting where allowed, until one has none or
        `max_slots` of the pool are in use; these pages are now filling and pinned. A parent that is filling counts
        as present here (the caller's earlier batch). Returns (index in `pages`, page number) in order (KNOWN ones
        are skipped); the index where it stopped (`stop`: all done); True: it stopped because someone else fills that
        page (False: no slot). Never evicts ancestors of this chain. Raises Refused."""
    def commit(self, pages: Sequence[int], digests: bytes) -> int:
        """Filling pages are resident (16-byte payload digests, one after the other; unpinned). Pages that were cut or
        deleted meanwhile, or whose parent was lost, are given back; their slots are not used again before this (or
        `abort`). Returns how many became resident."""
    def abort(self, pages: Sequence[int]) -> None:
        """Filling pages are given up: their slots are free, pins gone."""
    def refs(self, pages: Sequence[int]) -> bytes:
        """Packed PageRefs (format below) of pages: what movers need."""

    # chunks (numbers are unique on the node)
    def add_chunk(
        self,
        chunk: int,
        slot_bytes: int,
        slots: int,
        payload_at: int,
        header_at: int,
        header_bytes: int,
        generations: bytes,
    ) -> None:
        """header_at: of the first slot's generation in the file; generations: u64 LE per slot, or b"" for a fresh
        chunk."""
    def free_slots(self, slot_bytes: int) -> int: ...
    def can_evict(self, slot_bytes: int) -> bool: ...
    def chunks(self) -> list[tuple[int, int, int, int, bool, float]]:
        """chunk, slot bytes, slots, slots in use, idle (nothing filling, pinned or dirty-and-being-written), last use
        (unix seconds)."""
    def retire_chunks(self) -> None:
        """Take no new page into the present chunks."""
    def clear_chunk(self, chunk: int, limit: int) -> int:
        """Evict up to `limit` resident pages of an idle chunk; returns how many are left. 0: the chunk is forgotten.
        Closed to new pages from the first call on; pages that were pinned meanwhile are left, and a later call goes
        on."""
    def reopen_chunk(self, chunk: int) -> None:
        """Give up clearing it: new pages may go there again."""
    def drop_slots(self, chunk: int, slots: Sequence[int]) -> int:
        """The slots' contents are damaged: their pages' DRAM copies are gone (cut where on no
        other tier). Returns how many."""

    # nvme
    def read_plan(
        self, pages: Sequence[int], max_bytes: int, max_pieces: int, max_gap: int, now: float
    ) -> list[tuple[int, int, int, list[int]]]:
        """Take slots for missing pages in chain order (evicting where allowed; stops at the first without one) and
        group them into device reads: segment, offset, bytes (gaps <= max_gap inside included), pages. These pages
        are filling and pinned."""
    def finish_read(self, good: Sequence[int], bad: Sequence[int], failed: Sequence[int]) -> None:
        """good: resident; bad: checksum mismatch, nvme copy dropped, page cut; failed: not read, nvme copy kept. All
        unpinned."""
    def dirty(self, pages: Sequence[int]) -> list[int]:
        """Of these: resident, attached, not on nvme and not marked as writing; marks them as writing and pins them."""
    def chain_of(self, layout: bytes, hash_: bytes, keys: Sequence[tuple[int, int]]) -> list[int]:
        """Pages from the root to this block."""
    def next_dirty(self, slot_bytes: int, limit: int) -> list[int]:
        """For write-back: what will be evicted next and is not on nvme, whole chain prefixes first (ancestors before
        descendants); marked as writing and pinned."""
    def written(self, pages: Sequence[int], segment: int, offsets: Sequence[int]) -> None:
        """Writing is done: these lie on nvme now (offset of the payload in the segment, bytes; digest kept from
        commit). Unpins."""
    def not_written(self, pages: Sequence[int]) -> None:
        """Writing was given up. Unpins."""
    def place_of(self, page: int) -> tuple[int, int, int] | None:
        """segment, offset, size on nvme."""
    def places_of(self, pages: Sequence[int]) -> list[tuple[int, int, int] | None]:
        """As `place_of`, of each."""
    def in_segment(self, segment: int, pages: Sequence[int]) -> list[int]:
        """Of these, which may be gone by now, those that lie in the segment, in their order."""
    def without_slot(self, pages: Sequence[int]) -> list[int]:
        """Of these, in their order: those that lie on nvme, and are neither in DRAM nor on their way there."""
    def detached(self, pages: Sequence[int]) -> list[int]:
        """Of these, in their order: those that were deleted, or cut, and that nobody finds any more."""
    def parent_page(self, page: int) -> int | None:
        """The same key's page of the parent block."""
    def stretches(self, pages: Sequence[int]) -> list[list[int]]:
        """The pages, cut wherever one neither belongs to the same block as the one before it, nor to a child block."""
    def segment_live(self, segment: int) -> tuple[int, int, float]:
        """live pages, live bytes, worth (policy: sum of values; larger is kept)."""
    def segment_pages(self, segment: int) -> list[int]:
        """By offset."""
    def drop_segment(self, segment: int, limit: int) -> int:
        """Take up to `limit` pages' nvme copies away (cut if nowhere else); returns how many are left."""
    def moved(self, page: int, from_segment: int, from_offset: int, segment: int, offset: int) -> bool:
        """The cleaner laid a copy there; False: the page does not lie at the place it came from any more."""
    def worth(self, pages: Sequence[int]) -> list[float]:
        """The policy's value of keeping each page, comparable within the pool."""
    def runs(self, layout: bytes, hash_: bytes, max_gap: int = 65536) -> tuple[int, int]:
        """Contiguous nvme runs of the chain that ends here (gaps <= max_gap, in one segment, do not end one), and its
        bytes on nvme."""

    # deletion, expiry, pins
    def delete(self, layout: bytes, hash_: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Cut the block and all below it: the hashes cut (one after the other), and (chunk, slot) of slots whose commit
        words a mover must clear before the deletion is acknowledged (they are not reused before `free_deleted`)."""
    def free_deleted(self, slots: Sequence[tuple[int, int]]) -> None: ...
    def take_late(self) -> list[tuple[int, int]]:
        """(chunk, slot) of slots that were committed, or given up, after their page had been deleted, since this was
        last asked: to be cleared like those of `delete`, then `free_deleted`."""
    def expire(self, before: float, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` (layout, hash) of blocks stored before that time, to be deleted."""
    def pin_prefix(self, layout: bytes, hashes: Hashes, until: float, limit_bytes: int) -> int:
        """Leading present blocks pinned until then, as far as `pinned_bytes` stays within the limit; until 0.0:
        unpinned. Returns how many blocks."""
    def unpin_expired(self, now: float) -> None: ...

    # recovery: stage all that was found, then link in slices
    def stage_slots(self, chunk: int, records: bytes) -> None:
        """Packed PageRefs of committed slots; the field of the nvme segment is the slot's last use (unix seconds)."""
    def stage_deleted(self, layout: bytes, prints: bytes, cutoffs: bytes) -> None:
        """Before any entries: blocks that were deleted, by the first 16 bytes of their hashes, and of each the serial
        (8 bytes) up to which what was written of it, and of all blocks below it, is gone."""
    def stage_entries(self, segment: int, entries: bytes, layouts: bytes) -> int:
        """Packed media entries (segments.py) and the table of layouts, 32 bytes each. How many of them are not of
        deleted blocks; what lies below one goes when all is linked."""
    def stage_links(self, entries: bytes, layouts: bytes) -> None:
        """Entries of pages that are gone: through the links of their blocks, deletions reach what lies below."""
    def link(self, limit: int) -> bool:
        """Work on up to `limit` staged pages; True: done. Orphans' slots are free afterwards; a newer nvme copy (higher
        segment number) wins."""
    linking: bool
    """Staging has begun, be it with nothing, and is not linked: nothing is found, all that is put is BUSY, and nothing
    may be deleted."""
    orphans: int
    """Staged pages that were dropped: without their parent's page, or in contradiction to others."""
    def check(self) -> None:
        """For tests: PanicException unless every link and count is right. Looks at everything; not while linking."""

REF_BYTES: Final[int]
"""A packed PageRef, little-endian: layout 32s, hash 64s, parent 64s, payload digest 16s, generation Q, slot payload
offset Q, stored_at I, size I, group I, trailing I, chunk Q, slot I, depth I, nvme segment I, nvme offset/4096 I,
shard H, hash length B, parent length B (struct "<32s64s64s16sQQIIIIQIIIIHBB")."""

ENTRY_BYTES: Final[int]
"""A packed media entry, little-endian: hash 64s, parent 64s, payload digest 16s, page checksum 16s (not looked at),
serial Q (not looked at), offset/4096 I, size I, stored_at I, group I, trailing I, depth I, number in the table of
layouts H, shard H, hash length B, parent length B, 2 zeros (struct "<64s64s16s16sQIIIIIIHHBB2x", 200 bytes)."""
