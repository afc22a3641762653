"""Figures and verdicts as every writer of a status words them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvtier_crds.conditions import ConditionType, Reason, Status

BINARY_UNITS: Final = tuple((f"{letter}i", 1024**power) for power, letter in reversed(list(enumerate("KMGTP", 1))))
"""Suffix and factor, the largest first."""


@dataclass(frozen=True)
class Verdict:
    """What a condition shall say, before it has a time."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str


def about(size: int) -> str:
    """A quantity to read, with one digit after the point at most, such as `12.5Gi`; `0` for nothing."""
    for unit, factor in BINARY_UNITS:
        if size >= factor:
            value = size / factor
            return f"{value:.{0 if value >= 100 else 1}f}".removesuffix(".0") + unit
    return str(size)


def hit_ratio(asked: int, hit: int) -> str:
    """Blocks found of blocks asked for, such as `87%`; `-`: none asked.

    Rounded down, so that 100% means every one.
    """
    return f"{min(hit, asked) * 100 // asked}%" if asked else "-"
