"""What requests ask for, checked against the protocol's limits, and how a put is cut into batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kvtier_client.protocol.messages import (
    HASH_BYTES,
    LAYOUT_BYTES,
    MAX_BLOCKS,
    MAX_PAGES_OF_BLOCK,
    HashList,
    PageId,
    Put,
    RefusalCode,
)
from kvtier_client.protocol.places import place_count

from .arena_format import MAX_PAGE_BYTES, PAGE, round_up
from .errors import Refusal

if TYPE_CHECKING:
    from kvtier_index import Key, Refused

_NUMBER_LIMIT: Final = 1 << 32
_SHARD_LIMIT: Final = 1 << 16
_LEAST_HASH: Final = HASH_BYTES.start
_MOST_HASH: Final = HASH_BYTES.stop - 1

WantedPage = tuple[bytes, int, int, int, int]
"""Hash, group, shard, n of trailing(n), size: as the index takes them."""


class PutPlan(NamedTuple):
    """A put that is well formed."""

    pages: list[WantedPage]
    parents: list[bytes | None]
    """Of each page's block."""
    offsets: list[int]
    """Of each page in the staging."""
    keys: list[Key]
    """That occur, each once."""


def check_pages(pages: Sequence[PageId], blocks: int) -> list[Key]:
    """The keys of the pages that a caller asks for, of so many blocks. Raises Refusal."""
    if not pages:
        raise Refusal(RefusalCode.MALFORMED, "no pages are named; name at least one (group, shard)")
    _check_count(len(pages))
    keys = [_checked_key(page) for page in pages]
    if len({key[:2] for key in keys}) != len(keys):
        raise Refusal(RefusalCode.MALFORMED, "a page is named twice")
    if blocks * len(keys) > MAX_BLOCKS and place_count(blocks, pages) > MAX_BLOCKS:
        raise Refusal(RefusalCode.LIMIT, f"more than {MAX_BLOCKS} pages in one request; ask for a shorter prefix")
    return keys


def check_layout(layout: bytes) -> None:
    """Raise Refusal unless this is a layout's fingerprint."""
    if len(layout) != LAYOUT_BYTES:
        raise Refusal(RefusalCode.MALFORMED, f"the layout has {len(layout)} bytes instead of {LAYOUT_BYTES}")


def check_chain(layout: bytes, hashes: HashList) -> None:
    """Raise Refusal unless layout and hashes are within the protocol's limits."""
    check_layout(layout)
    _check_length(hashes.length)
    if len(hashes.packed) % hashes.length:
        raise Refusal(
            RefusalCode.MALFORMED, f"{len(hashes.packed)} bytes are no whole number of hashes of {hashes.length}"
        )
    if len(hashes) > MAX_BLOCKS:
        raise Refusal(RefusalCode.LIMIT, f"{len(hashes)} hashes in one request; at most {MAX_BLOCKS} are taken")


def check_put(put: Put, staging_bytes: int) -> PutPlan:
    """The pages of a put in chain order. Raises Refusal."""
    if not put.pages:
        raise Refusal(RefusalCode.MALFORMED, "a put has no pages")
    pages = [(it.hash, it.page.group, it.page.shard, it.page.trailing, it.size) for it in put.pages]
    check_layout(put.layout)
    for length in {len(it[0]) for it in pages} | ({len(put.parent)} if put.parent is not None else set()):
        _check_length(length)
    if len(pages) > MAX_BLOCKS:
        raise Refusal(RefusalCode.LIMIT, f"{len(pages)} pages in one request; at most {MAX_BLOCKS} are taken")
    keys = [_checked_key(page) for page in dict.fromkeys(it.page for it in put.pages)]
    parents = _parents(put.parent, pages)
    for it in put.pages:
        if not 0 < it.size <= MAX_PAGE_BYTES:
            raise Refusal(RefusalCode.LIMIT, f"a page of {it.size} bytes; 1 to {MAX_PAGE_BYTES} are taken")
        if it.offset < 0 or it.offset + it.size > staging_bytes:
            raise Refusal(
                RefusalCode.BAD_STAGING,
                f"a page at {it.offset} of {it.size} bytes lies outside the staging of {staging_bytes}",
            )
    return PutPlan(pages, parents, [it.offset for it in put.pages], keys)


def batches(plan: PutPlan, start: int, max_bytes: int, max_pages: int) -> Iterator[tuple[int, int]]:
    """Ranges of pages from `start` on, each of one class, of at most so many bytes and pages, but of at least one."""
    first, size, class_bytes = start, 0, 0
    for index in range(start, len(plan.pages)):
        slot_bytes = round_up(plan.pages[index][4], PAGE)
        if index > first and (slot_bytes != class_bytes or size + slot_bytes > max_bytes or index - first == max_pages):
            yield first, index
            first, size = index, 0
        class_bytes = slot_bytes
        size += slot_bytes
    yield first, len(plan.pages)


def refusal_of(error: Refused) -> Refusal:
    """What the index refuses, as it is said to a client."""
    code, _, message = error.args
    return Refusal(RefusalCode(code), message)


def _check_length(length: int) -> None:
    if not _LEAST_HASH <= length <= _MOST_HASH:
        raise Refusal(RefusalCode.MALFORMED, f"a hash has {length} bytes; {_LEAST_HASH} to {_MOST_HASH} are allowed")


def _parents(parent: bytes | None, pages: Sequence[WantedPage]) -> list[bytes | None]:
    """The parent of each page's block: the block before it.

    Raises Refusal unless pages of one block stand together, and no page and no block comes twice.
    """
    hashes = [page[0] for page in pages]
    if len({*hashes, parent}) > len(hashes):  # each block has one page
        return [parent, *hashes[:-1]]
    seen = set[bytes]() if parent is None else {parent}
    block, in_block = b"", set[tuple[int, int]]()
    parents: list[bytes | None] = []
    for hash_, group, shard, _, _ in pages:
        if hash_ != block:
            if hash_ in seen:
                raise Refusal(RefusalCode.MALFORMED, "a block comes twice; pages of one block stand together")
            seen.add(hash_)
            parent = block or parent
            block, in_block = hash_, {(group, shard)}
        elif (group, shard) in in_block:
            raise Refusal(RefusalCode.MALFORMED, "a page comes twice")
        else:
            in_block.add((group, shard))
            _check_count(len(in_block))
        parents.append(parent)
    return parents


def _check_count(pages: int) -> None:
    if pages > MAX_PAGES_OF_BLOCK:
        raise Refusal(RefusalCode.LIMIT, f"{pages} pages of one block; at most {MAX_PAGES_OF_BLOCK} are taken")


def _checked_key(page: PageId) -> Key:
    if not (0 <= page.group < _NUMBER_LIMIT and 0 <= page.shard < _SHARD_LIMIT and 0 <= page.trailing < _NUMBER_LIMIT):
        raise Refusal(
            RefusalCode.MALFORMED, f"group {page.group}, shard {page.shard} or trailing {page.trailing} is out of range"
        )
    return page.group, page.shard, page.trailing
