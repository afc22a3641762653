"""Figures of many nodes made into those of a class or a pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvtier_crds.models import TierStatus, TierStatuses
from kvtier_crds.words import about, hit_ratio

from kvtier_operator.quantities import exact, parse_bytes


def sum_tiers(statuses: Iterable[TierStatuses | None]) -> TierStatuses | None:
    """Capacity and use of each tier together; None when there is none."""
    present = [status for status in statuses if status]
    if not present:
        return None
    return TierStatuses(
        dram=_sum([status.dram for status in present if status.dram]),
        nvme=_sum([status.nvme for status in present if status.nvme]),
    )


@dataclass(frozen=True)
class Asked:
    """Blocks asked for and found within the window."""

    asked: int = 0
    hit: int = 0

    def __add__(self, other: Asked) -> Asked:
        return Asked(self.asked + other.asked, self.hit + other.hit)


def ratio(total: Asked) -> str:
    """The hit ratio as a status shows it."""
    return hit_ratio(total.asked, total.hit)


def _sum(tiers: list[TierStatus]) -> TierStatus | None:
    if not tiers:
        return None
    capacity = sum(parse_bytes(tier.capacity) for tier in tiers)
    used = sum(parse_bytes(tier.used) for tier in tiers)
    written = exact(capacity)
    return TierStatus(capacity=written if len(written) <= 8 else about(capacity), used=about(used))
