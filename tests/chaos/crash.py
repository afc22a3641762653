"""kill -9, power cuts and bit flips, as many as asked: `python -m tests.chaos.crash`, `make crash`.

What must survive survives and nothing wrong is served, or the exit status is not 0. Figures go to `.out/crash.json`,
what the stores of parts that found something said to `.out/crash-*.log`. Parts of the test run beside each other,
each with stores, clients and files of its own.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.part import INTERRUPTS, UNAVAILABLE
from tests.chaos.report import CrashReport, Least, find_faults, join

REPOSITORY: Final = Path(__file__).resolve().parents[2]
OUT: Final = REPOSITORY / ".out"
LARGEST_PART: Final = {"kills": 50, "cuts": 40, "flips": 1_000}
"""A part's store begins empty; as many as its tiers have room for."""
DRAWN_PER_KILL: Final = 700
"""Least page reads that each kill must bring, on average; the first ones of a part have few to draw from."""
POLL_S: Final = 0.1


class PartsFailed(Exception):
    """Parts of the run did not finish; they have said why."""


class PartsUnavailable(Exception):
    """This machine cannot run a part, which has said why."""


@dataclass(frozen=True)
class Part:
    """So much of one kind, in one process."""

    kind: str
    count: int
    seed: int


def plan_parts(counts: dict[str, int], seed: int) -> list[Part]:
    """The parts that make up a run, kinds in turn so that an early end has tried each."""
    rng = random.Random(seed)
    by_kind = []
    for kind, count in counts.items():
        sizes = [min(LARGEST_PART[kind], count - done) for done in range(0, count, LARGEST_PART[kind])]
        by_kind.append([Part(kind, size, rng.randrange(1 << 32)) for size in sizes])
    ordered = [((index + 1) / len(parts), part) for parts in by_kind for index, part in enumerate(parts)]
    return [part for _, part in sorted(ordered, key=lambda it: it[0])]


def run_parts(parts: Sequence[Part], at_once: int, reports: list[CrashReport]) -> set[int]:
    """Run the parts, so many beside each other, and return the exit statuses of those that failed.

    `reports` takes what each part reports as it ends. After a part that failed no other begins.
    """
    waiting, running = list(reversed(parts)), list[tuple[subprocess.Popen[bytes], Path]]()
    statuses = set[int]()
    with tempfile.TemporaryDirectory(prefix="kvtier-crash-reports-") as folder:
        try:
            while running or (waiting and not statuses):
                while waiting and len(running) < at_once and not statuses:
                    report = Path(folder) / str(len(waiting))
                    running.append((_start(waiting.pop(), report), report))
                for process, report in [it for it in running if it[0].poll() is not None]:
                    running.remove((process, report))
                    if process.returncode:
                        statuses.add(process.returncode)
                    if report.exists():
                        reports.append(msgspec.json.decode(report.read_bytes(), type=CrashReport))
                time.sleep(POLL_S)
        finally:
            for process, _ in running:
                process.terminate()
            for process, _ in running:
                process.wait()
    return statuses


def _start(part: Part, report: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.chaos.part", part.kind, str(part.count), str(part.seed), str(report)]
    return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], cwd=REPOSITORY)


def crash(counts: dict[str, int], seed: int, at_once: int, out: Path) -> CrashReport:
    """All that is asked for, and the report on it, which is written to `out` too, however far the run came.

    Raises PartsFailed, PartsUnavailable.
    """
    begin = time.monotonic()
    out.parent.mkdir(exist_ok=True)
    reports = list[CrashReport]()
    try:
        statuses = run_parts(plan_parts(counts, seed), at_once, reports)
    finally:  # an interrupt, too
        report = join(seed, reports, round(time.monotonic() - begin, 1))
        if reports:
            out.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if statuses == {UNAVAILABLE}:
        raise PartsUnavailable
    if statuses:
        raise PartsFailed(f"a part ended with status {', '.join(map(str, sorted(statuses)))}")
    return report


def least(counts: dict[str, int]) -> Least:
    """What a run of so many must have done."""
    kills = counts["kills"]
    return Least(kills, kills * 4 // 5, counts["cuts"], counts["flips"], kills * DRAWN_PER_KILL)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="crashes of the store; nothing promised may be lost, nothing be wrong")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--cuts", type=int, default=500, help="power cuts")
    parser.add_argument("--flips", type=int, default=10_000, help="bit flips")
    parser.add_argument("--at-once", type=int, default=2, help="stores that run beside each other")
    parser.add_argument("--seed", type=int, help="repeats the choices of a run, not its timing")
    arguments = parser.parse_args()
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's choice stands
            signal.signal(number, _interrupt)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    counts = {"kills": arguments.kills, "cuts": arguments.cuts, "flips": arguments.flips}
    try:
        report = crash(counts, seed, arguments.at_once, OUT / "crash.json")
    except (PartsFailed, PartsUnavailable) as error:
        sys.exit(f"crash: {error or 'this machine cannot run it'}")
    faults = find_faults(report, least(counts))
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
    if faults:
        sys.exit("crash: " + "; ".join(faults))


def _interrupt(*_: object) -> None:
    """End the run; nothing interrupts what is then cleaned up."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit("crash: interrupted")


if __name__ == "__main__":
    main()
