"""How a pool gets room in dram: pure decisions over the books of chunks.

Within a class of page sizes the index itself evicts, by the pool's policy. What is decided here is memory: whether a
chunk is made, or which one is given back. A quota or capacity is reached by bytes, or by pages that are too small for
the memory of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .arena_format import CHUNK_TARGET_BYTES, Geometry, decide_geometry

_PARTS: Final = 8
"""A quota is at least this many chunks, so that giving one back loses little."""
UNLIMITED: Final = 1 << 40


class Grow(NamedTuple):
    """Make a chunk of this cut."""

    cut: Geometry


class GiveBack(NamedTuple):
    """Give this idle chunk back first."""

    pool_uid: str
    chunk: int


class Await(NamedTuple):
    """Nothing can go now, but pages are being stored or written: look again."""


class NoRoom(NamedTuple):
    """Everything is held, or the quota is too small for a page of this size."""

    reason: str


RoomStep = Grow | GiveBack | Await | NoRoom


class ChunkView(NamedTuple):
    """A chunk of a pool, as its index sees it."""

    pool_uid: str
    id: int
    slot_bytes: int
    slots: int
    in_use: int
    idle: bool
    """Nothing in it is being filled, pinned or written."""
    last_use: float


class RoomView(NamedTuple):
    """What decide_room looks at."""

    pool_uid: str
    pool_bytes: int
    total_bytes: int
    quota_bytes: int
    capacity_bytes: int
    file_alignment: int
    crowded: bool
    """Whether the pool has all the pages that the index has memory for."""
    for_load: bool
    """Whether pages come from nvme, and what they hang on is pinned."""
    busy: bool
    """Whether something is under way that may make room."""


def chunk_target_bytes(quota_bytes: int, capacity_bytes: int) -> int:
    """How large a pool's chunks are to be."""
    return min(CHUNK_TARGET_BYTES, quota_bytes // _PARTS, capacity_bytes // _PARTS)


def most_slots(size_bytes: int, mean_page_bytes: int) -> int:
    """How many pages the index has memory for, in a quota or capacity of this size."""
    return size_bytes // mean_page_bytes if mean_page_bytes else UNLIMITED


def decide_growth(view: RoomView, slot_bytes: int) -> Geometry | None:
    """The cut of a chunk that may be made for this class now; None: quota or capacity are reached."""
    cut = decide_geometry(slot_bytes, chunk_target_bytes(view.quota_bytes, view.capacity_bytes), view.file_alignment)
    fits = (
        view.pool_bytes + cut.file_bytes <= view.quota_bytes
        and view.total_bytes + cut.file_bytes <= view.capacity_bytes
    )
    return cut if fits and not view.crowded else None


def decide_room(view: RoomView, slot_bytes: int, chunks: Sequence[ChunkView]) -> RoomStep:
    """The next step towards a slot of this class, none being free or evictable.

    `chunks`: of all pools. Where the quota is reached the pool gives up one of its own, else whoever has the coldest.
    One of this class goes last, and never for a put: what the index did not evict from it, new pages may hang on.
    """
    cut = decide_geometry(slot_bytes, chunk_target_bytes(view.quota_bytes, view.capacity_bytes), view.file_alignment)
    if cut.file_bytes > min(view.quota_bytes, view.capacity_bytes):
        return NoRoom(
            f"a chunk for pages of {slot_bytes} bytes takes {cut.file_bytes}, more than the pool's quota in dram "
            f"({view.quota_bytes}) or the node's capacity ({view.capacity_bytes})"
        )
    if decide_growth(view, slot_bytes) is not None:
        return Grow(cut)
    own_only = view.crowded or view.pool_bytes + cut.file_bytes > view.quota_bytes
    own = [it.last_use for it in chunks if (it.pool_uid, it.slot_bytes) == (view.pool_uid, slot_bytes)]
    others = (it for it in chunks if (it.pool_uid, it.slot_bytes) != (view.pool_uid, slot_bytes))
    coldest = coldest_idle(it for it in others if not own_only or it.pool_uid == view.pool_uid)
    if coldest is not None and (not view.busy or not own or coldest.last_use < min(own)):
        return GiveBack(coldest.pool_uid, coldest.id)
    if view.busy:
        return Await()
    if view.for_load and (last := coldest_idle(it for it in chunks if it.pool_uid == view.pool_uid)) is not None:
        return GiveBack(last.pool_uid, last.id)
    return NoRoom("everything in dram is held by readers; release holds, or raise the pool's quota")


def coldest_idle(chunks: Iterable[ChunkView]) -> ChunkView | None:
    """The chunk to give back first; None: each has a slot that is in use."""
    return min((it for it in chunks if it.idle), key=lambda it: it.last_use, default=None)


def decide_exchange(chunks: Iterable[ChunkView], short_classes: Iterable[int]) -> ChunkView | None:
    """Of a pool at its quota, the idle chunk to give back for a class that evicts its own pages meanwhile.

    One whose pages were all used last before any chunk of that class was; None: there is none.
    """
    by_class: dict[int, list[ChunkView]] = {}
    for it in chunks:
        by_class.setdefault(it.slot_bytes, []).append(it)
    for slot_bytes in short_classes:
        oldest = min((it.last_use for it in by_class.get(slot_bytes, ())), default=float("inf"))
        others = (it for class_, its in by_class.items() if class_ != slot_bytes for it in its)
        coldest = coldest_idle(it for it in others if it.last_use < oldest)
        if coldest is not None:
            return coldest
    return None


def decide_surplus(
    chunks: Iterable[ChunkView],
    retired: set[int],
    over_quota: set[str],
    *,
    over_capacity: bool,
) -> ChunkView | None:
    """The next chunk to give back: retired, or over a lowered quota or capacity; None: there is none, or wait."""
    chunks = list(chunks)
    return (
        coldest_idle(it for it in chunks if it.id in retired)
        or coldest_idle(it for it in chunks if it.pool_uid in over_quota)
        or (coldest_idle(chunks) if over_capacity else None)
    )
