"""Bytes as Kubernetes quantities for statuses, and durations as specs have them."""

from __future__ import annotations

import re
from typing import Final

from kvtier_crds.words import BINARY_UNITS

_DECIMAL_UNITS: Final = tuple((unit, 1000**power) for power, unit in reversed(list(enumerate("kMGTP", 1))))

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `36h`, `30m` or `1h30m`. Raises ValueError when it is none."""
    match = _DURATION.fullmatch(text)
    if not match or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration such as 36h or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def exact(size: int) -> str:
    """The quantity of exactly `size` bytes, in a unit that makes it short, such as `1.25Gi` or `500M`."""
    for units, step in ((BINARY_UNITS, 1024), (_DECIMAL_UNITS, 1000)):
        for unit, factor in units:
            if factor <= size < factor * step and size * 100 % factor == 0:
                return f"{size / factor:.2f}".rstrip("0").rstrip(".") + unit
    return str(size)
