"""Checks of callers' arguments: what is wrong raises ValueError and says what was expected. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from .protocol.messages import HASH_BYTES, LAYOUT_BYTES, MAX_PAGES_OF_BLOCK, HashList, PageId
from .protocol.places import most_blocks
from .results import Page

MAX_PIN_S = 30 * 86_400


def check_deadline(seconds: float) -> float:
    """The deadline, in seconds.

    Raises ValueError unless it is a number above 0.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError(f"a deadline must be above 0 seconds and finite, not {seconds}")
    return seconds


def check_pages(pages: Sequence[PageId]) -> tuple[PageId, ...]:
    """The pages that make a block whole.

    Raises ValueError when there is none, one is out of range or comes twice, or a group is of two kinds.
    """
    return _checked_pages(tuple(pages))


@lru_cache(maxsize=64)
def _checked_pages(pages: tuple[PageId, ...]) -> tuple[PageId, ...]:
    """Kept, since one caller asks for the same pages over and over."""
    if not 1 <= len(pages) <= MAX_PAGES_OF_BLOCK:
        raise ValueError(f"pages must name 1 to {MAX_PAGES_OF_BLOCK} pages, not {len(pages)}")
    for page in pages:
        _check_page(page)
    if len({(page.group, page.shard) for page in pages}) != len(pages):
        raise ValueError("pages names a page twice")
    _check_kinds(pages)
    return pages


def check_chain(layout: bytes, hashes: Sequence[bytes], pages: tuple[PageId, ...]) -> HashList:
    """The hashes to ask for: the leading ones, as many as one request may name.

    Raises ValueError.
    """
    return check_hashes(layout, hashes).part(0, most_blocks(pages))


def check_layout(layout: bytes) -> None:
    """Raise ValueError unless this is a layout's fingerprint."""
    if not isinstance(layout, bytes) or len(layout) != LAYOUT_BYTES:
        raise ValueError(f"layout must be {LAYOUT_BYTES} bytes: Layout.fingerprint()")


def check_hashes(layout: bytes, hashes: Sequence[bytes]) -> HashList:
    """The hashes.

    Raises ValueError unless these are a layout and hashes of one length.
    """
    check_layout(layout)
    try:
        packed = HashList.of(hashes)
    except (TypeError, ValueError):
        _explain(hashes)
        raise
    if packed.length not in HASH_BYTES:
        _explain(hashes)
    return packed


def _explain(hashes: Sequence[bytes]) -> None:
    """Raise ValueError with the first that is no hash, if one is not."""
    for index, value in enumerate(hashes):
        _check_hash(value, f"hashes[{index}]")


def check_put(layout: bytes, parent: bytes | None, pages: Sequence[Page]) -> None:
    """Raise ValueError unless these are pages of consecutive blocks, those of a block together."""
    check_layout(layout)
    if parent is not None:
        _check_hash(parent, "parent")
    seen: set[tuple[bytes, int, int]] = set()
    finished: set[bytes] = set()
    before: bytes | None = parent
    for index, page in enumerate(pages):
        if page.hash != before:
            _check_hash(page.hash, f"pages[{index}].hash")
            if before is not None:
                finished.add(before)
            before = page.hash
        if page.hash in finished or (page.hash == parent):
            raise ValueError(f"pages[{index}]: block {page.hash.hex()} comes twice in the chain")
        key = (page.hash, page.page.group, page.page.shard)
        if key in seen:
            raise ValueError(f"pages[{index}]: {page.page} of block {page.hash.hex()} comes twice")
        seen.add(key)
    kinds = {page.page for page in pages}
    for kind in kinds:
        _check_page(kind)
    _check_kinds(kinds)


def check_pin_seconds(seconds: int) -> int:
    """For how long to pin.

    Raises ValueError unless it is a whole number of seconds, at most MAX_PIN_S.
    """
    if not isinstance(seconds, int) or not 0 <= seconds <= MAX_PIN_S:
        raise ValueError(f"seconds must be a whole number from 0 to {MAX_PIN_S}, not {seconds}")
    return seconds


def check_report(block_tokens: int, prefill_tokens_per_s: float, at_depth: int, bytes_per_token: float) -> None:
    """Raise ValueError unless these can be an engine's figures."""
    if block_tokens < 1 or at_depth < 0:
        raise ValueError(f"block_tokens must be above 0 and at_depth not below, not {block_tokens} and {at_depth}")
    if not 0 < prefill_tokens_per_s < float("inf") or not 0 < bytes_per_token < float("inf"):
        raise ValueError(
            "prefill_tokens_per_s and bytes_per_token must be above 0 and finite, "
            f"not {prefill_tokens_per_s} and {bytes_per_token}"
        )


def check_hold_id(hold: int) -> int:
    """The id of a hold.

    Raises ValueError.
    """
    if not isinstance(hold, int) or not 0 <= hold < 1 << 64:
        raise ValueError(f"a hold's id is a whole number of 64 bits, not {hold}")
    return hold


def _check_hash(value: bytes, what: str) -> None:
    if not isinstance(value, bytes) or len(value) not in HASH_BYTES:
        raise ValueError(f"{what} must be {HASH_BYTES.start} to {HASH_BYTES.stop - 1} bytes")


def _check_page(page: PageId) -> None:
    if not (0 <= page.group < 1 << 32 and 0 <= page.shard < 1 << 16 and 0 <= page.trailing < 1 << 32):
        raise ValueError(f"{page} is out of range: group and trailing are 32 bits, shard is 16")


def _check_kinds(pages: Iterable[PageId]) -> None:
    kinds: dict[int, int] = {}
    for page in pages:
        if kinds.setdefault(page.group, page.trailing) != page.trailing:
            raise ValueError(f"group {page.group} is named both trailing({page.trailing}) and otherwise")
