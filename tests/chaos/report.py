"""What a crash test found, as in `.out/crash.json`, and whether that keeps and proves the store's promises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

_LARGEST = ("memory_limit_bytes", "memory_peak_bytes")
_NOTHING_ALLOWED = ("lost_dram", "lost_flushed", "wrong", "failed_puts", "oom_kills")


class CrashReport(msgspec.Struct):
    """The findings, of one part of a run or of all."""

    seed: int = 0
    kills: int = 0
    """kill -9 of a store under load or at rest; those of a recovering store are not counted here."""
    power_cuts: int = 0
    """Contents of a device after a cut on which a store was started and read."""
    bit_flips: int = 0
    """Bits flipped in a live page, its header or a summary, whose page was then asked for."""
    detected: int = 0
    """Of these, those after which no damaged byte was served: the page was a miss, or right from a good copy."""
    served: int = 0
    """Page reads that were compared and right."""
    drawn: int = 0
    """Of these, those of pages drawn evenly from all that was acknowledged until then."""
    lost_dram: int = 0
    """Acknowledged pages whose slot in the arena did not survive."""
    lost_flushed: int = 0
    """Pages acknowledged as flushed that were not served; bit flips aside."""
    wrong: int = 0
    """Pages served with other bytes, to whomever."""
    kills_with_put_in_flight: int = 0
    kills_while_recovering: int = 0
    node_memory_losses: int = 0
    promised_pages: int = 0
    """Pages that had to be there at the end of a part, all in all."""
    missed: int = 0
    """Of the bit flips detected, those whose page was a miss; the others' pages were right from a good copy."""
    failed_puts: int = 0
    """Puts that a running store did not take, before the kill or after the restart."""
    oom_kills: int = 0
    served_meanwhile: int = 0
    """Page reads of the client that runs and the one that is stopped."""
    written_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_peak_bytes: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Least:
    """What a run must have done, or it proves nothing."""

    kills: int = 0
    kills_with_put_in_flight: int = 0
    power_cuts: int = 0
    bit_flips: int = 0
    drawn: int = 0


def join(seed: int, parts: Iterable[CrashReport], wall_s: float) -> CrashReport:
    """The report on all parts together."""
    total = CrashReport(seed, wall_s=wall_s)
    for part in parts:
        for name in CrashReport.__struct_fields__:
            if name not in ("seed", "wall_s"):
                both = (getattr(total, name), getattr(part, name))
                setattr(total, name, max(both) if name in _LARGEST else sum(both))
    return total


def find_faults(report: CrashReport, least: Least) -> list[str]:
    """What breaks a guarantee or leaves it unproven, in sentences; empty when all is well."""
    broken = [f"{name} is {getattr(report, name)}, must be 0" for name in _NOTHING_ALLOWED if getattr(report, name)]
    if report.detected < report.bit_flips:
        broken.append(f"detected is {report.detected}, must be all {report.bit_flips} bit flips")
    return broken + [
        f"{name} is {getattr(report, name)}, must be at least {wanted}"
        for name, wanted in vars(least).items()
        if getattr(report, name) < wanted
    ]
