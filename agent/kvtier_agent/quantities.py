"""Bytes as Kubernetes quantities for statuses."""

from __future__ import annotations

from typing import Final

from kvtier_crds.words import BINARY_UNITS

_DECIMAL_UNITS: Final = tuple((unit, 1000**power) for power, unit in reversed(list(enumerate("kMGTP", 1))))


def exact(size: int) -> str:
    """The quantity of exactly `size` bytes, in a unit that makes it short, such as `1.25Gi` or `500M`."""
    for units, step in ((BINARY_UNITS, 1024), (_DECIMAL_UNITS, 1000)):
        for unit, factor in units:
            if factor <= size < factor * step and size * 100 % factor == 0:
                return f"{size / factor:.2f}".rstrip("0").rstrip(".") + unit
    return str(size)
