"""Bytes as Kubernetes quantities, for people and for statuses."""

from __future__ import annotations

from typing import Final

_UNITS: Final = tuple((f"{letter}i", 1024**power) for power, letter in reversed(list(enumerate("KMGTP", 1))))
_DECIMAL_UNITS: Final = tuple((unit, 1000**power) for power, unit in reversed(list(enumerate("kMGTP", 1))))


def about(size: int) -> str:
    """A quantity to read, with one digit after the point at most, such as `1.5Gi`."""
    for unit, factor in _UNITS:
        if size >= factor:
            value = size / factor
            return f"{value:.{0 if value >= 100 else 1}f}".removesuffix(".0") + unit
    return str(size)


def exact(size: int) -> str:
    """The quantity of exactly `size` bytes, in a unit that makes it short, such as `1.25Gi` or `500M`."""
    for units, step in ((_UNITS, 1024), (_DECIMAL_UNITS, 1000)):
        for unit, factor in units:
            if factor <= size < factor * step and size * 100 % factor == 0:
                return f"{size / factor:.2f}".rstrip("0").rstrip(".") + unit
    return str(size)
