"""Break-even at run time: what each pool is offered, from the devices' measured speed and what engines report."""

from __future__ import annotations

import math
from typing import Final

from kvtier_client.protocol.messages import Report

from ..ports import PoolView
from .books import Books
from .estimate import EngineSpeed, Gate, breakeven_blocks, offered_blocks, restore_s

_LAYOUTS: Final = 64
"""Of one pool whose engines' speed is kept: a layout that is unknown in part is another in every process."""
_DEPTHS: Final = 16
"""Depths that are kept of one layout's reports."""


class _Engines:
    """Those of one layout."""

    def __init__(self, speed: EngineSpeed, gate: Gate) -> None:
        self.speed, self.gate = speed, gate


class Offers:
    """Decides what lookups offer. Event loop thread only."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._pools: dict[str, dict[bytes, _Engines]] = {}
        """By layout, the one that was reported last at the end."""

    def report(self, pool_uid: str, report: Report) -> None:
        """Take in how fast an engine computes at one depth; a newer figure for the same depth replaces the old."""
        layouts = self._pools.setdefault(pool_uid, {})
        known = layouts.pop(report.layout, None)
        points: dict[int, float] = {}
        if known is not None and known.speed.block_tokens == report.block_tokens:
            points.update(known.speed.tokens_per_s)
        points[report.at_depth] = report.prefill_tokens_per_s
        if len(points) > _DEPTHS:
            del points[
                min(points, key=lambda depth: abs(depth - report.at_depth) if depth != report.at_depth else 1e18)
            ]
        speed = EngineSpeed(report.block_tokens, report.bytes_per_token, tuple(sorted(points.items())))
        layouts[report.layout] = _Engines(speed, known.gate if known is not None else Gate())
        if len(layouts) > _LAYOUTS:
            del layouts[next(iter(layouts))]

    def forget(self, pool_uid: str) -> None:
        """The pool is gone."""
        self._pools.pop(pool_uid, None)

    def offered(self, pool: PoolView, layout: bytes, whole: int, in_dram: int, now: float) -> int:
        """Of `whole` leading blocks, how many pay to restore; all of them where the pool restores always.

        Where no device can be read now, nothing below DRAM is offered.
        """
        if whole <= in_dram or pool.grant is None or pool.grant.restore == "always":
            return whole
        if not any(it.health.readable for it in self._books.devices):
            return in_dram
        engines = self._pools.get(pool.uid, {}).get(layout)
        bandwidth, queue_s = self._bandwidth(now), self._queue_s(now)
        if engines is None or bandwidth is None:
            return whole
        pays = offered_blocks(whole, in_dram, engines.speed, bandwidth, queue_s)
        takes_s = restore_s(whole - in_dram, engines.speed, bandwidth, queue_s)
        return engines.gate.decide(whole, pays, takes_s, now)

    def breakeven_blocks(self, pool_uid: str, now: float) -> float | None:
        """What a prefix that lies on nvme must have at least to pay, in the pool's layout with the highest need.

        Infinite where none pays; None while speeds are not known.
        """
        bandwidth = self._bandwidth(now)
        layouts = self._pools.get(pool_uid)
        if bandwidth is None or not layouts:
            return None
        queue_s, most = self._queue_s(now), 0.0
        for it in layouts.values():
            if most == math.inf:
                break
            if not most or offered_blocks(int(most), 0, it.speed, bandwidth, queue_s) == 0:  # else it needs no more
                most = breakeven_blocks(it.speed, bandwidth, queue_s)
        return most

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
