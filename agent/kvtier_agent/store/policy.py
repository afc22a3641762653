"""What goes where, and what has to go: pure decisions over the books of both tiers.

DRAM: a pool reuses slots of its own size class, least recently used leaves first. A chunk of another
class that is colder as a whole than the next such leaf is given back instead, and so is the coldest idle
chunk where the class has no slot to reuse: of the pool itself where its quota is reached, of any pool
where the capacity is. A quota or capacity is reached by bytes, or by pages that are too small for the memory of
the index. NVMe: whole segments go, coldest first, by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from .arena import Arena, Chunk
from .arena_format import CHUNK_TARGET_BYTES, PAGE, Geometry, decide_geometry
from .index import Index, Page
from .nvme import Nvme, Segment, SegmentState

SEGMENT_TARGET_BYTES: Final = 64 << 20
_PARTS: Final = 8
"""A quota is at least this many chunks or segments, so that giving one back loses little."""


class Grow(NamedTuple):
    """Make a chunk of this cut."""

    cut: Geometry


class Evict(NamedTuple):
    """Drop this page's DRAM copy and take its slot."""

    page: Page


class GiveBack(NamedTuple):
    """Give this idle chunk back first."""

    chunk: Chunk


class Await(NamedTuple):
    """Nothing can go now, but pages are being written to nvme or chunks are being made: look again."""


class NoRoom(NamedTuple):
    """Everything is held, or the quota is too small for a page of this size."""

    reason: str


RoomStep = Grow | Evict | GiveBack | Await | NoRoom


@dataclass(frozen=True)
class RoomView:
    """What decide_room looks at."""

    arena: Arena
    index: Index
    pool_uid: str
    quota_bytes: int
    capacity_bytes: int
    file_alignment: int
    busy: bool
    """Whether something is under way that may make room."""
    mean_page_bytes: int = 0
    """What pages count at least, on average."""
    compare: bool = True
    """Whether to look for a colder chunk of another class. Costs a pass over all chunks: not for every page."""


def chunk_target_bytes(quota_bytes: int, capacity_bytes: int) -> int:
    """How large a pool's chunks are to be."""
    return min(CHUNK_TARGET_BYTES, quota_bytes // _PARTS, capacity_bytes // _PARTS)


def is_crowded(pages: int, size_bytes: int, mean_page_bytes: int) -> bool:
    """Whether that many pages are all that the index has memory for, in a quota or capacity of this size."""
    return 0 < size_bytes <= pages * mean_page_bytes


def is_arena_crowded(view: RoomView) -> bool:
    """Whether no slot may be taken although one may be free."""
    return _is_pool_crowded(view) or is_crowded(view.arena.total_slots, view.capacity_bytes, view.mean_page_bytes)


def _is_pool_crowded(view: RoomView) -> bool:
    return is_crowded(view.arena.pool_slots(view.pool_uid), view.quota_bytes, view.mean_page_bytes)


def decide_room(view: RoomView, slot_bytes: int) -> RoomStep:
    """The next step towards a slot of this class, none being free or the arena crowded."""
    arena = view.arena
    cut = decide_geometry(slot_bytes, chunk_target_bytes(view.quota_bytes, view.capacity_bytes), view.file_alignment)
    over_quota = _is_pool_crowded(view) or arena.pool_bytes(view.pool_uid) + cut.file_bytes > view.quota_bytes
    over_capacity = arena.total_bytes + cut.file_bytes > view.capacity_bytes
    if not over_quota and not over_capacity and not is_arena_crowded(view):
        return Grow(cut)
    page = view.index.evictable(slot_bytes)
    chunks = arena.pool_chunks(view.pool_uid) if over_quota else arena.chunks.values()
    if page is not None:
        colder = _colder_chunk(chunks, view.pool_uid, slot_bytes, page.last_use) if view.compare else None
        return Evict(page) if colder is None else GiveBack(colder)
    if cut.file_bytes > min(view.quota_bytes, view.capacity_bytes):
        return NoRoom(
            f"a chunk for pages of {slot_bytes} bytes takes {cut.file_bytes}, more than the pool's quota in dram "
            f"({view.quota_bytes}) or the node's capacity ({view.capacity_bytes})"
        )
    chunk = coldest_idle_chunk(chunks)
    if chunk is not None:
        return GiveBack(chunk)
    if view.busy:
        return Await()
    return NoRoom("everything in dram is held by readers; release holds, or raise the pool's quota")


def coldest_idle_chunk(chunks: Iterable[Chunk]) -> Chunk | None:
    """The chunk to give back first; None: each has a slot that is in use."""
    return next((chunk for chunk in sorted(chunks, key=lambda it: it.last_use) if chunk.is_idle()), None)


def _colder_chunk(chunks: Iterable[Chunk], pool_uid: str, slot_bytes: int, last_use: int) -> Chunk | None:
    others = (it for it in chunks if (it.pool_uid, it.cut.slot_bytes) != (pool_uid, slot_bytes))
    return coldest_idle_chunk(it for it in others if it.last_use < last_use)


def decide_surplus_chunk(arena: Arena, quotas: dict[str, int], capacity_bytes: int) -> Chunk | None:
    """The next chunk to give back: retired, or over a lowered quota or capacity; None: there is none, or wait."""
    retired = coldest_idle_chunk(chunk for chunk in arena.chunks.values() if chunk.retired)
    if retired is not None:
        return retired
    for pool_uid, quota in quotas.items():
        over = arena.pool_bytes(pool_uid) > quota
        if over and (chunk := coldest_idle_chunk(arena.pool_chunks(pool_uid))) is not None:
            return chunk
    return coldest_idle_chunk(arena.chunks.values()) if arena.total_bytes > capacity_bytes else None


def segment_target_bytes(quota_bytes: int, capacity_bytes: int) -> int:
    """How large a pool's segments are to be; 0: the pool has no place on nvme."""
    size = min(SEGMENT_TARGET_BYTES, quota_bytes // _PARTS, capacity_bytes // _PARTS)
    return size // PAGE * PAGE


def open_segments_limit(quota_bytes: int, segment_bytes: int, devices: int) -> int:
    """How many segments a pool may fill at once: one per device, while most of its quota stays sealed."""
    return max(1, min(devices, quota_bytes // max(segment_bytes, 1) // 4))


def decide_reclaim(nvme: Nvme, pool_uid: str, quota_bytes: int, wanted_bytes: int) -> Segment | None:
    """The segment to free before one of `wanted_bytes` is made for the pool; None: none need or none can go.

    With `wanted_bytes` 0: the segment to free because a quota was lowered.
    """
    if not _fits_quota(nvme, pool_uid, quota_bytes, wanted_bytes):
        candidates = nvme.pool_segments(pool_uid)
    elif not _fits_capacity(nvme, wanted_bytes):
        candidates = iter(nvme.segments.values())
    else:
        return None
    idle = (segment for segment in candidates if segment.state is SegmentState.SEALED and segment.io == 0)
    return min(idle, key=lambda it: it.last_use, default=None)


def fits_nvme(nvme: Nvme, pool_uid: str, quota_bytes: int, wanted_bytes: int) -> bool:
    """Whether a segment of this size may be made for the pool now."""
    return _fits_quota(nvme, pool_uid, quota_bytes, wanted_bytes) and _fits_capacity(nvme, wanted_bytes)


def _fits_quota(nvme: Nvme, pool_uid: str, quota_bytes: int, wanted_bytes: int) -> bool:
    pages = sum(segment.entries for segment in nvme.pool_segments(pool_uid))
    crowded = is_crowded(pages, quota_bytes, nvme.mean_page_bytes)
    return not crowded and nvme.pool_bytes(pool_uid) + wanted_bytes <= quota_bytes


def _fits_capacity(nvme: Nvme, wanted_bytes: int) -> bool:
    pages = sum(segment.entries for segment in nvme.segments.values())
    crowded = is_crowded(pages, nvme.capacity_bytes, nvme.mean_page_bytes)
    return not crowded and nvme.total_bytes + wanted_bytes <= nvme.capacity_bytes
