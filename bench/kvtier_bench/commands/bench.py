"""`kvtier bench`: measure the store beside the machine's limits and its peers."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from kvtier_bench import environment, machine, report
from kvtier_bench.context import Options
from kvtier_bench.runner import run_all
from kvtier_bench.scenarios import SCENARIOS

from .command import Command

_BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `kvtier bench` takes."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures here; with --only, into what is there"
    )
    parser.add_argument("--only", type=_names, metavar="NAME,...", help=f"of: {', '.join(_BY_NAME)}")
    parser.add_argument("--quick", action="store_true", help="small data: to see that all runs, not to be quoted")
    parser.add_argument("--soak-minutes", type=float, default=30.0, metavar="N", help="how long the soak is (30)")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="a folder on the disk to be measured; 30 GiB free for a full run",
    )
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="measure nothing; print that file's tables")


def run(arguments: argparse.Namespace) -> int:
    """Measure and report. 0 when it ran, whatever the figures say."""
    if arguments.markdown is not None:
        print(report.markdown(report.read_json(arguments.markdown)), end="")
        return 0
    logging.getLogger("kvtier.client").setLevel(logging.ERROR)  # stores that still start are no news here
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)

    options = Options(arguments.scratch, arguments.quick, arguments.soak_minutes, environment.cache_folder())
    facts = machine.describe()
    scenarios = [_BY_NAME[name] for name in arguments.only or _BY_NAME]
    figures = run_all(scenarios, options, say)
    facts["peers"] = environment.versions(options.peers)
    results = report.Report.of_run(figures, facts)
    if arguments.json is not None:
        report.write_json(results, arguments.json, keep_earlier=arguments.only is not None)
    report.print_table(results, Console(width=None if sys.stdout.isatty() else 140))
    return 0


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in _BY_NAME]:
        raise argparse.ArgumentTypeError(f"no scenario is called {', '.join(unknown)}; there are {', '.join(_BY_NAME)}")
    return names


COMMAND: Final = Command("bench", "Measure the store beside memcpy, the disk and other caches.", add_arguments, run)
