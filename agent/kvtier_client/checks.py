"""Checks of callers' arguments: what is wrong raises ValueError and says what was expected. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .protocol.messages import HASH_BYTES, LAYOUT_BYTES, MAX_BLOCKS, PageId
from .results import Page

MAX_PAGES_OF_BLOCK = 1024


def check_deadline(seconds: float) -> float:
    """The deadline, in seconds.

    Raises ValueError unless it is a number above 0.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError(f"a deadline must be above 0 seconds and finite, not {seconds}")
    return seconds


def check_pages(pages: Sequence[PageId]) -> int:
    """How many pages make a block.

    Raises ValueError when there is none, one is out of range, or one comes twice.
    """
    if not 1 <= len(pages) <= MAX_PAGES_OF_BLOCK:
        raise ValueError(f"pages must name 1 to {MAX_PAGES_OF_BLOCK} pages, not {len(pages)}")
    for page in pages:
        _check_page(page)
    if len(set(pages)) != len(pages):
        raise ValueError("pages names a page twice")
    return len(pages)


def check_chain(layout: bytes, hashes: Sequence[bytes], pages_per_block: int) -> list[bytes]:
    """The hashes to ask for: the leading ones, as many as one request may name.

    Raises ValueError.
    """
    _check_layout(layout)
    for index, value in enumerate(hashes):
        _check_hash(value, f"hashes[{index}]")
    return list(hashes[: MAX_BLOCKS // pages_per_block])


def check_put(layout: bytes, parent: bytes | None, pages: Sequence[Page]) -> None:
    """Raise ValueError unless these are pages of consecutive blocks, those of a block together."""
    _check_layout(layout)
    if parent is not None:
        _check_hash(parent, "parent")
    seen: set[tuple[bytes, PageId]] = set()
    finished: set[bytes] = set()
    before: bytes | None = parent
    for index, page in enumerate(pages):
        _check_hash(page.hash, f"pages[{index}].hash")
        _check_page(page.page)
        if page.hash != before:
            if before is not None:
                finished.add(before)
            before = page.hash
        if page.hash in finished or (page.hash == parent):
            raise ValueError(f"pages[{index}]: block {page.hash.hex()} comes twice in the chain")
        if (page.hash, page.page) in seen:
            raise ValueError(f"pages[{index}]: {page.page} of block {page.hash.hex()} comes twice")
        seen.add((page.hash, page.page))


def _check_layout(layout: bytes) -> None:
    if not isinstance(layout, bytes) or len(layout) != LAYOUT_BYTES:
        raise ValueError(f"layout must be {LAYOUT_BYTES} bytes: Layout.fingerprint()")


def _check_hash(value: bytes, what: str) -> None:
    if not isinstance(value, bytes) or len(value) not in HASH_BYTES:
        raise ValueError(f"{what} must be {HASH_BYTES.start} to {HASH_BYTES.stop - 1} bytes")


def _check_page(page: PageId) -> None:
    if not (0 <= page.group < 1 << 32 and 0 <= page.shard < 1 << 16):
        raise ValueError(f"{page} is out of range: group is 32 bits, shard is 16")
