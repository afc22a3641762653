"""The rounds of the crash test: what happens between one kill and the next, and what it adds up to."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from tests.chaos.ledger import Verdict
from tests.chaos.scene import Scene


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


class CrashReport(msgspec.Struct):
    """The result, as in `.out/crash.json`."""

    seed: int
    kills: int = 0
    served: int = 0
    """Page reads after restarts that were compared and right."""
    lost_dram: int = 0
    """Acknowledged pages whose slot in the arena did not survive."""
    lost_flushed: int = 0
    """Pages acknowledged as flushed that were not served."""
    wrong: int = 0
    """Pages served with other bytes, to whomever."""
    kills_with_put_in_flight: int = 0
    kills_while_recovering: int = 0
    """Not counted in `kills`."""
    node_memory_losses: int = 0
    promised_pages: int = 0
    """Pages that the last restart had to bring back."""
    failed_puts: int = 0
    """Puts that a running store did not take, before the kill or after the restart."""
    oom_kills: int = 0
    served_meanwhile: int = 0
    """Page reads of the client that runs and the one that is stopped."""
    written_bytes: int = 0
    memory_limit_bytes: int = 0
    memory_peak_bytes: int = 0
    wall_s: float = 0.0

    def faults(self, least_served: int, least_in_flight: int) -> list[str]:
        """What breaks a guarantee or leaves it unproven, in sentences; empty when all is well."""
        nothing_allowed = ("lost_dram", "lost_flushed", "wrong", "failed_puts", "oom_kills")
        broken = [f"{name} is {getattr(self, name)}, must be 0" for name in nothing_allowed if getattr(self, name)]
        unproven = {"served": least_served, "kills_with_put_in_flight": least_in_flight}
        return broken + [
            f"{name} is {getattr(self, name)}, must be at least {least}"
            for name, least in unproven.items()
            if getattr(self, name) < least
        ]


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
    verdict = scene.read_back()
    scene.bystanders.wake_sleeper()
    scene.bystanders.meet()
    report.served += verdict.served
    report.lost_dram += len(verdict.lost_dram)
    report.lost_flushed += len(verdict.lost_flushed)
    report.wrong += len(verdict.wrong)
    report.promised_pages = scene.ledger.promised_pages()
    return verdict


def run_rounds(scene: Scene, kills: int, report: CrashReport, say: Callable[[str], None]) -> None:
    """So many kills of the scene's store, one line each; `report` is true at every moment.

    Raises StoreFailed when it does not come back, BystanderFailed, TimeoutError.
    """
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
        report.wall_s = round(time.monotonic() - begin, 1)
        lost = ", node's memory lost" if this.node_memory_lost else ""
        say(
            f"kill {report.kills}/{kills} ({this.moment}{lost}): {report.promised_pages} pages promised, "
            f"{verdict.served} read right, lost {len(verdict.lost_dram)} dram {len(verdict.lost_flushed)} flushed, "
            f"wrong {len(verdict.wrong)}; {report.wall_s:.0f} s"
        )
        for line in verdict.wrong[:5]:
            say(f"  wrong: {line}")
    scene.bystanders.part()
    seen = scene.bystanders.seen()
    report.served_meanwhile = seen.served
    report.wrong += seen.wrong
