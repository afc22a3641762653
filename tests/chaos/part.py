"""One part of a crash test, in a process of its own: `python -m tests.chaos.part KIND COUNT SEED REPORT`.

KIND is `kills`, `cuts` or `flips`. The report is true also of a part that is ended or fails; exit status 1 says so.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from dev.faults.place import FaultsUnavailable
from tests.chaos.bystander_process import BystanderFailed
from tests.chaos.cuts import run_cuts
from tests.chaos.flips import run_flips
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.report import CrashReport
from tests.chaos.rounds import run_kills
from tests.chaos.store_process import StoreFailed

Run = Callable[[int, random.Random, CrashReport, Callable[[str], None]], None]
KINDS: Final[dict[str, Run]] = {"kills": run_kills, "cuts": run_cuts, "flips": run_flips}
UNAVAILABLE: Final = 3
"""Exit status where this machine cannot run such a part."""
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="A part of a crash test.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("report", type=Path)
    part = parser.parse_args()
    for number in INTERRUPTS:
        signal.signal(number, _interrupt)
    logging.getLogger("kvtier.client").setLevel(logging.ERROR)  # the store's absence is what this is about
    report = CrashReport(part.seed)
    begin = time.monotonic()
    try:
        KINDS[part.kind](part.count, random.Random(part.seed), report, _say)
    except (CgroupUnavailable, FaultsUnavailable) as error:
        _say(f"{part.kind}: {error}")
        return UNAVAILABLE
    except (StoreFailed, BystanderFailed, TimeoutError, OSError, subprocess.CalledProcessError) as error:
        _say(f"{part.kind} (seed {part.seed}): {error}")
        return 1
    finally:
        report.wall_s = round(time.monotonic() - begin, 1)
        part.report.write_bytes(msgspec.json.encode(report))
    return 0


def _say(line: str) -> None:
    """One line in one write, since another part may speak too."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> None:
    """End the part; nothing interrupts what is then cleaned up."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit("interrupted")


if __name__ == "__main__":
    sys.exit(main())
