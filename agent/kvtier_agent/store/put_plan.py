"""What a put asks for, checked and compared with the index. Pure."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import HASH_BYTES, LAYOUT_BYTES, MAX_BLOCKS, PageId, Put, RefusalCode

from .arena_format import MAX_PAGE_BYTES
from .core import PendingKey
from .errors import Refusal
from .index import Index, Page, PageKey, page_key

MAX_PLACES: Final = 65_536
"""Most pages in one reply: it has to fit into a frame."""


class WantedPage(NamedTuple):
    """One page of a put."""

    hash: bytes
    parent: bytes | None
    key: PageKey
    size: int
    offset: int
    """In the staging."""


class PutPlan(NamedTuple):
    """What to do about a put now."""

    known: list[Page]
    fresh: list[WantedPage]
    """Not there and not on the way, in chain order."""
    waits: list[asyncio.Future[None]]
    """Others store these pages, or the parent: plan again when they are done. Nothing else is set then."""


def check_pages(pages: Sequence[PageId]) -> tuple[PageKey, ...]:
    """The keys of the pages that a caller asks for. Raises Refusal."""
    if not pages:
        raise Refusal(RefusalCode.MALFORMED, "no pages are named; name at least one (group, shard)")
    for page in pages:
        if not (0 <= page.group < 1 << 32 and 0 <= page.shard < 1 << 16):
            raise Refusal(RefusalCode.MALFORMED, f"group {page.group} or shard {page.shard} is out of range")
    keys = tuple(page_key(page) for page in pages)
    if len(set(keys)) != len(keys):
        raise Refusal(RefusalCode.MALFORMED, "a page is named twice")
    return keys


def check_chain(layout: bytes, hashes: Sequence[bytes]) -> None:
    """Raise Refusal unless layout and hashes are within the protocol's limits."""
    if len(layout) != LAYOUT_BYTES:
        raise Refusal(RefusalCode.MALFORMED, f"the layout has {len(layout)} bytes instead of {LAYOUT_BYTES}")
    if len(hashes) > MAX_BLOCKS:
        raise Refusal(RefusalCode.LIMIT, f"{len(hashes)} hashes in one request; at most {MAX_BLOCKS} are taken")
    for hash_ in hashes:
        if len(hash_) not in HASH_BYTES:
            raise Refusal(
                RefusalCode.MALFORMED,
                f"a hash has {len(hash_)} bytes; {HASH_BYTES.start} to {HASH_BYTES.stop - 1} are allowed",
            )


def check_put(put: Put, staging_bytes: int) -> list[WantedPage]:
    """The pages of a put in chain order, each with its parent's hash. Raises Refusal."""
    check_chain(put.layout, [page.hash for page in put.pages])
    if not put.pages:
        raise Refusal(RefusalCode.MALFORMED, "a put has no pages")
    if put.parent is not None:
        check_chain(put.layout, [put.parent])
    wanted: list[WantedPage] = []
    parent, seen = put.parent, set[bytes]() if put.parent is None else {put.parent}
    keys: set[PageKey] = set()
    for page in put.pages:
        if wanted and page.hash != wanted[-1].hash:
            parent, keys = wanted[-1].hash, set()
        if not keys and page.hash in seen:
            raise Refusal(RefusalCode.MALFORMED, "a block comes twice; pages of one block stand together")
        seen.add(page.hash)
        (key,) = check_pages([page.page])
        if key in keys:
            raise Refusal(RefusalCode.MALFORMED, "a page comes twice")
        keys.add(key)
        if not 0 < page.size <= MAX_PAGE_BYTES:
            raise Refusal(RefusalCode.LIMIT, f"a page of {page.size} bytes; 1 to {MAX_PAGE_BYTES} are taken")
        if page.offset < 0 or page.offset + page.size > staging_bytes:
            raise Refusal(
                RefusalCode.BAD_STAGING,
                f"a page at {page.offset} of {page.size} bytes lies outside the staging of {staging_bytes}",
            )
        wanted.append(WantedPage(page.hash, parent, key, page.size, page.offset))
    return wanted


def decide_put(
    index: Index, pending: Mapping[PendingKey, asyncio.Future[None]], layout: bytes, wanted: Sequence[WantedPage]
) -> PutPlan:
    """What is known, what is new, and whom to wait for.

    Raises Refusal when a parent is absent or a known page has another size.
    """
    waits = _waits(pending, layout, wanted)
    if waits:
        return PutPlan([], [], waits)
    plan = PutPlan([], [], [])
    stored_before: set[tuple[bytes, PageKey]] = set()
    for page in wanted:
        node = index.node(layout, page.hash)
        known = node.pages.get(page.key) if node else None
        if node is not None and (node.parent.hash if node.parent else None) != page.parent:
            raise Refusal(RefusalCode.PARENT_ABSENT, f"block {page.hash.hex()} is stored under another parent")
        if known is not None:
            if known.size != page.size:
                raise Refusal(
                    RefusalCode.SIZE_MISMATCH,
                    f"block {page.hash.hex()} is stored with {known.size} bytes, not {page.size}; "
                    "what differs belongs into the layout",
                )
            plan.known.append(known)
        else:
            _require_parent(index, layout, page, stored_before)
            plan.fresh.append(page)
        stored_before.add((page.hash, page.key))
    return plan


def keys_by_first_parent(fresh: Sequence[WantedPage]) -> dict[bytes, list[PageKey]]:
    """Where each key's first new page hangs: parents' hashes, each with its keys; roots are left out."""
    first: dict[PageKey, bytes | None] = {}
    for page in fresh:
        first.setdefault(page.key, page.parent)
    grouped: defaultdict[bytes, list[PageKey]] = defaultdict(list)
    for key, parent in first.items():
        if parent is not None:
            grouped[parent].append(key)
    return grouped


def _waits(
    pending: Mapping[PendingKey, asyncio.Future[None]], layout: bytes, wanted: Sequence[WantedPage]
) -> list[asyncio.Future[None]]:
    keys = [(layout, page.hash, page.key) for page in wanted]
    keys += [(layout, page.parent, page.key) for page in wanted if page.parent is not None]
    return list({id(it): it for key in keys if (it := pending.get(key)) is not None}.values())


def _require_parent(index: Index, layout: bytes, page: WantedPage, stored_before: set[tuple[bytes, PageKey]]) -> None:
    if page.parent is None or (page.parent, page.key) in stored_before:
        return
    parent = index.node(layout, page.parent)
    if parent is None or page.key not in parent.pages:
        raise Refusal(
            RefusalCode.PARENT_ABSENT,
            f"the parent {page.parent.hex()} of block {page.hash.hex()} is not stored; put the chain from its first "
            "absent block on",
        )
