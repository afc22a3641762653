"""kill -9 of the store at random moments: `python -m tests.chaos.crash --kills 50`, `make crash`.

What must survive survives, or the exit status is not 0. Figures go to `.out/crash.json`.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.bystander_process import BystanderFailed
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.rounds import CrashReport, run_rounds
from tests.chaos.scene import open_scene
from tests.chaos.store_process import StoreFailed

OUT: Final = Path(__file__).resolve().parents[2] / ".out"
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SERVED_PER_KILL: Final = 1_000
"""Least page reads that each kill must bring, on average."""
DRAM_PER_KILL: Final = 12 << 20
"""Capacity for somewhat more than a round writes."""


def crash(kills: int, seed: int) -> CrashReport:
    """Kill a store so often; the report on what survived.

    Raises CgroupUnavailable, StoreFailed, BystanderFailed, TimeoutError; the store's log is then in `.out`.
    """
    report = CrashReport(seed)
    dram_bytes = max(512 << 20, kills * DRAM_PER_KILL)
    rng = random.Random(seed)
    with open_scene(rng, dram_bytes) as scene:
        try:
            run_rounds(scene, kills, report, lambda line: print(line, flush=True))
        finally:
            OUT.mkdir(exist_ok=True)
            (OUT / "crash.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
            if scene.place.log.exists():
                shutil.copy(scene.place.log, OUT / "crash-store.log")
    return report


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="kill -9 of the store at random moments; nothing promised may be lost")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, help="repeats the choices of a run, not its timing")
    arguments = parser.parse_args()
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's choice stands
            signal.signal(number, _interrupt)
    logging.getLogger("kvtier.client").setLevel(logging.ERROR)  # the store's absence is what this is about
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    try:
        report = crash(arguments.kills, seed)
    except (CgroupUnavailable, StoreFailed, BystanderFailed, TimeoutError) as error:
        sys.exit(f"crash: {error}")
    faults = report.faults(arguments.kills * SERVED_PER_KILL, arguments.kills * 4 // 5)
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
