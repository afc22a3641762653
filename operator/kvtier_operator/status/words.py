"""Lists of names and numbers of things, as sentences need them."""

from __future__ import annotations

from collections.abc import Sequence


def names(entries: Sequence[str], most: int = 5) -> str:
    """`a`, `a and b`, `a, b and c`, or the first `most` and how many more."""
    shown = list(entries[:most])
    if len(entries) > most:
        return f"{', '.join(shown)} and {len(entries) - most} more"
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def count(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def labels(selector: dict[str, str]) -> str:
    """`a=b,c=d`, as kubectl takes it."""
    return ",".join(f"{key}={value}" if value else key for key, value in sorted(selector.items()))
