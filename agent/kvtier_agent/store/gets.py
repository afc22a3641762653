"""Lookups and gets: the longest whole prefix, brought into DRAM and held there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvtier_client.protocol.messages import Get, GetReply, Lookup, LookupReply, PagePlace, RefusalCode, Tier

from .arena import Slot
from .core import Pool
from .errors import Refusal
from .holds import HOLD_S
from .index import Page
from .loader import Loader
from .put_plan import MAX_PLACES, check_chain, check_pages
from .puts import deadline_of


def lookup(pool: Pool, message: Lookup) -> LookupReply:
    """Answer a lookup at once. Raises Refusal."""
    check_chain(message.layout, message.hashes)
    keys = check_pages(message.pages)
    nodes = pool.index.find(message.layout, message.hashes, keys)
    in_dram = sum(all(node.pages[key].slot is not None for key in keys) for node in nodes)
    pool.counters["lookups"] += 1
    pool.counters["blocks_asked"] += len(message.hashes)
    pool.counters["blocks_hit"] += len(nodes)
    pool.window.count(len(message.hashes), len(nodes))
    return LookupReply(message.request_id, len(nodes), in_dram)


async def get(pool: Pool, loader: Loader, pod: str, message: Get) -> GetReply:
    """Load what lies on nvme, hold what is whole in DRAM by the deadline, and say where. Raises Refusal."""
    deadline = deadline_of(message.deadline_ms)
    check_chain(message.layout, message.hashes)
    keys = check_pages(message.pages)
    if len(message.hashes) * len(keys) > MAX_PLACES:
        raise Refusal(RefusalCode.LIMIT, f"more than {MAX_PLACES} pages in one get; ask for a shorter prefix")
    nodes = pool.index.find(message.layout, message.hashes, keys)
    if not nodes:
        return GetReply(message.request_id, 0, [])
    pool.index.touch(nodes[-1], keys)
    pages = [node.pages[key] for node in nodes for key in keys]
    tiers = [Tier.NVME if page.slot is None else Tier.DRAM for page in pages]
    for page in pages:
        pool.index.pin(page)
    missing = [page for page in pages if page.slot is None]
    if missing:
        await loader.load(pool, missing, deadline)
        pool.index.touch(nodes[-1], keys)
    slots = _leading_slots(pages, len(keys))
    kept = pages[: len(slots)]
    for page in pages[len(slots) :]:
        pool.index.unpin(page)
    if not kept:
        return GetReply(message.request_id, 0, [])
    _count_dram(pool, kept, tiers)
    hold_id = pool.holds.take(pod, kept, asyncio.get_running_loop().time())
    places = [_place(page, slot, tier) for page, slot, tier in zip(kept, slots, tiers, strict=False)]
    return GetReply(message.request_id, len(kept) // len(keys), places, hold_id, int(HOLD_S * 1000))


def _leading_slots(pages: Sequence[Page], pages_per_block: int) -> list[Slot]:
    """The slots of the leading blocks that lie whole in DRAM."""
    slots: list[Slot] = []
    for page in pages:
        if page.slot is None:
            break
        slots.append(page.slot)
    return slots[: len(slots) // pages_per_block * pages_per_block]


def _place(page: Page, slot: Slot, tier: Tier) -> PagePlace:
    cut = slot.chunk.cut
    return PagePlace(
        slot.chunk.id,
        cut.payload_offset(slot.number),
        page.size,
        cut.generation_offset(slot.number),
        slot.generation,
        tier,
    )


def _count_dram(pool: Pool, pages: Sequence[Page], tiers: Sequence[Tier]) -> None:
    """What was read from nvme is counted where it is read."""
    sizes = [page.size for page, tier in zip(pages, tiers, strict=False) if tier is Tier.DRAM]
    pool.counters["pages_read_dram"] += len(sizes)
    pool.counters["bytes_read_dram"] += sum(sizes)
