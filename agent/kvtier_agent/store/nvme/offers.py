"""Break-even at run time: what each pool is offered, from the devices' measured speed and what engines report."""

from __future__ import annotations

from typing import Final

from kvtier_client.protocol.messages import Report

from ..ports import PoolView
from .books import Books
from .estimate import EngineSpeed, Gate, breakeven_blocks, offered_blocks, restore_s

_DEPTHS: Final = 16
"""Depths that are kept of one layout's reports."""


class Offers:
    """Decides what lookups offer. Event loop thread only."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._speeds: dict[tuple[str, bytes], EngineSpeed] = {}
        self._gates: dict[tuple[str, bytes], Gate] = {}

    def report(self, pool_uid: str, report: Report) -> None:
        """Take in how fast an engine computes at one depth; a newer figure for the same depth replaces the old."""
        key = pool_uid, report.layout
        known = self._speeds.get(key)
        points = dict(known.tokens_per_s) if known is not None and known.block_tokens == report.block_tokens else {}
        points[report.at_depth] = report.prefill_tokens_per_s
        if len(points) > _DEPTHS:
            del points[
                min(points, key=lambda depth: abs(depth - report.at_depth) if depth != report.at_depth else 1e18)
            ]
        self._speeds[key] = EngineSpeed(report.block_tokens, report.bytes_per_token, tuple(sorted(points.items())))

    def offered(self, pool: PoolView, layout: bytes, whole: int, in_dram: int, now: float) -> int:
        """Of `whole` leading blocks, how many pay to restore; all of them where the pool restores always.

        Where no device can be read now, nothing below DRAM is offered.
        """
        if whole <= in_dram or pool.grant is None or pool.grant.restore == "always":
            return whole
        if not any(it.health.readable for it in self._books.devices):
            return in_dram
        key = pool.uid, layout
        engine, bandwidth, queue_s = self._speeds.get(key), self._bandwidth(now), self._queue_s(now)
        if engine is None or bandwidth is None:
            return whole
        pays = offered_blocks(whole, in_dram, engine, bandwidth, queue_s)
        takes_s = restore_s(whole - in_dram, engine, bandwidth, queue_s)
        return self._gates.setdefault(key, Gate()).decide(whole, pays, takes_s, now)

    def breakeven_blocks(self, pool_uid: str, now: float) -> float | None:
        """What a prefix that lies on nvme must have at least to pay, in the pool's layout with the highest need.

        Infinite where none pays; None while speeds are not known.
        """
        bandwidth = self._bandwidth(now)
        speeds = [speed for (uid, _), speed in self._speeds.items() if uid == pool_uid]
        if bandwidth is None or not speeds:
            return None
        return max(breakeven_blocks(it, bandwidth, self._queue_s(now)) for it in speeds)

    def _bandwidth(self, now: float) -> float | None:
        """Of all devices together, striped; None while none was measured."""
        known = [
            bandwidth
            for it in self._books.devices
            if it.health.readable and (bandwidth := it.estimate.bandwidth(now)) is not None
        ]
        return sum(known) if known else None

    def _queue_s(self, now: float) -> float:
        return max((it.estimate.queue_s(now) for it in self._books.devices if it.health.readable), default=0.0)
