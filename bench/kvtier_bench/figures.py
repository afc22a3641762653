"""What a scenario hands back, and the bars that its figures are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


class CannotRun(Exception):
    """A scenario, or a part of it, cannot run here; the message says why and what would help."""


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    key: str
    """Its name in the JSON file."""
    what: str
    """For people."""
    value: float | None
    """None: not measured, for `reason`."""
    unit: str = ""
    beside: str = ""
    """The limit, or the peer, in the same run."""
    reason: str = ""


@dataclass(frozen=True)
class Bar:
    """What a figure has to reach."""

    limit: float
    at_least: bool

    def met_by(self, value: float) -> bool:
        """Whether `value` is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def _least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


def _most(limit: float) -> Bar:
    return Bar(limit, at_least=False)


BARS: Final[dict[str, Bar]] = {
    "get_call_us_p50": _most(300),
    "get_call_busy_us_p99": _most(2000),
    "get_into_vs_memcpy": _least(0.9),
    "get_vs_mooncake": _least(2.5),
    "get_vs_redis": _least(5),
    "put_vs_mooncake": _least(2),
    "lookup_2048_ms_p50": _most(1),
    "nvme_vs_fio": _least(0.95),
    "restore_overlap": _most(1.15),
    "nvme_mib_per_request": _least(4),
    "two_devices_vs_one": _least(1.8),
    "runs_per_16mib": _most(2),
    "grown_vs_contiguous": _least(0.8),
    "write_amplification": _most(1.5),
    "full_runs_per_16mib": _most(2),
    "full_write_amplification": _most(1.5),
    "full_hits_vs_simulated": _least(0.95),
    "index_bytes_per_block": _most(200),
    "recovery_1m_s": _most(10),
    "break_even_closed_s": _most(10),
    "break_even_opened_s": _most(30),
}
"""By key, as the project set them."""
