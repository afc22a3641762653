"""The rounds of the crash test: what happens between one kill and the next, and what it adds up to."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from tests.chaos.ledger import Verdict
from tests.chaos.report import CrashReport
from tests.chaos.scene import Scene, keep_log, open_scene

LEAST_DRAM_BYTES: Final = 768 << 20
DRAM_PER_KILL: Final = 20 << 20
"""Capacity for somewhat more than a round writes, in several size classes."""
PAGES_PER_KILL: Final = 1_200
"""Drawn evenly from all that is promised; what was sent since the last kill is read on top."""


class Moment(StrEnum):
    """When the store is killed."""

    PUT_IN_FLIGHT = "put in flight"
    AT_REST = "at rest"
    RECOVERING = "recovering"
    """At rest, and once more while its successor starts."""


class Round(msgspec.Struct, frozen=True):
    """One kill."""

    moment: Moment
    node_memory_lost: bool = False
    """The arena is emptied before the restart, so that only nvme can bring pages back."""


def decide_round(kills: int, with_put_in_flight: int) -> Round:
    """What the next kill is to meet, after so many: four of five a put in flight, one of five a lost arena.

    Some puts are answered just before the kill; so a kill at rest waits until there is one in hand.
    """
    at_rest = 5 * with_put_in_flight >= 4 * (kills + 2)
    at_rest_before = kills - with_put_in_flight
    calm = Moment.AT_REST if at_rest_before % 2 == 0 else Moment.RECOVERING
    return Round(calm if at_rest else Moment.PUT_IN_FLIGHT, node_memory_lost=kills % 5 == 2)


def count(verdict: Verdict, report: CrashReport) -> None:
    """Add a reading's findings to the report."""
    report.served += verdict.served
    report.lost_dram += len(verdict.lost_dram)
    report.lost_flushed += len(verdict.lost_flushed)
    report.wrong += len(verdict.wrong)


def run_round(scene: Scene, this: Round, report: CrashReport) -> Verdict:
    """One kill, the restart, and everything that must then hold; adds to `report`."""
    prepare = scene.store_until_put_in_flight if this.moment is Moment.PUT_IN_FLIGHT else scene.store_and_rest
    report.failed_puts += not prepare()
    unfinished = scene.kill()
    report.kills += 1
    report.kills_with_put_in_flight += bool(unfinished)
    if this.moment is Moment.RECOVERING:
        scene.kill_while_recovering()
        report.kills_while_recovering += 1
    if this.node_memory_lost:
        scene.lose_node_memory()
        report.node_memory_losses += 1
    scene.start()
    report.failed_puts += scene.finish_puts(unfinished)
    drawn, verdict = scene.read_drawn_and_fresh(PAGES_PER_KILL)
    report.drawn += drawn.served
    verdict.add(drawn)
    scene.bystanders.wake_sleeper()
    scene.bystanders.meet()
    count(verdict, report)
    report.promised_pages = scene.ledger.promised_pages()
    return verdict


def run_kills(kills: int, rng: random.Random, report: CrashReport, say: Callable[[str], None]) -> None:
    """So many kills of a store, one line each; `report` is true at every moment.

    Raises CgroupUnavailable, StoreFailed when it does not come back, BystanderFailed, TimeoutError.
    """
    with open_scene(rng, max(LEAST_DRAM_BYTES, kills * DRAM_PER_KILL), two_devices=True) as scene:
        try:
            _run_rounds(scene, kills, report, say)
        finally:
            if report.lost_dram or report.lost_flushed or report.wrong:
                keep_log(scene, report.seed)


def _run_rounds(scene: Scene, kills: int, report: CrashReport, say: Callable[[str], None]) -> None:
    begin = time.monotonic()
    report.memory_limit_bytes = scene.memory.limit_bytes
    scene.start()
    scene.bystanders.meet()
    while report.kills < kills:
        this = decide_round(report.kills, report.kills_with_put_in_flight)
        verdict = run_round(scene, this, report)
        report.oom_kills = scene.memory.oom_kills()
        report.memory_peak_bytes = scene.memory.peak_bytes()
        report.written_bytes = scene.ledger.written_bytes()
        lost = ", node's memory lost" if this.node_memory_lost else ""
        say(
            f"kill {report.kills}/{kills} ({this.moment}{lost}): {report.promised_pages} pages promised, "
            f"{verdict.served} read right, lost {len(verdict.lost_dram)} dram {len(verdict.lost_flushed)} flushed, "
            f"wrong {len(verdict.wrong)}; {time.monotonic() - begin:.0f} s"
        )
        for line in verdict.wrong[:5]:
            say(f"  wrong: {line}")
    count(scene.read_back(), report)
    scene.bystanders.part()
    seen = scene.bystanders.seen()
    report.served_meanwhile = seen.served
    report.wrong += seen.wrong
