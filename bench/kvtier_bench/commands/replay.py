"""`kvtier replay`: hit ratio against capacity for the eviction policies, beside the offline optimum."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kvtier_bench.replay.optimum import optimum_blocks
from kvtier_bench.replay.policies import POLICIES, hit_blocks
from kvtier_bench.replay.trace import Trace, TraceError, read_trace

from .command import Command

_OPTIMUM: Final = "optimum"
_SHARES: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
"""Capacities, of the trace's different blocks, where none are given."""
_BAR_CELLS: Final = 40

Ratios = dict[str, dict[str, float]]
"""By policy, then by capacity: blocks found of blocks asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `kvtier replay` takes."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help='JSON lines with "hash_ids", one id per block')
    parser.add_argument(
        "--capacity", type=_capacities, metavar="N,...", help="in blocks; default: shares of the trace's blocks"
    )
    parser.add_argument(
        "--policy", type=_policies, default=POLICIES, metavar="P,...", help=f"of {', '.join(POLICIES)}; or all (all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {policy: {capacity: block hit ratio}} here")


def run(arguments: argparse.Namespace) -> int:
    """Replay and report. 2 when the trace cannot be used."""
    try:
        trace = read_trace(arguments.trace)
    except TraceError as error:
        print(f"kvtier replay: {error}", file=sys.stderr)
        return 2
    capacities = arguments.capacity or sorted({max(1, int(trace.blocks * share)) for share in _SHARES})
    ratios = replay(trace, capacities, arguments.policy, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(ratios, indent=2) + "\n")
    Console().print(chart(trace, ratios))
    return 0


def replay(trace: Trace, capacities: list[int], policies: tuple[str, ...], say: Callable[[str], None]) -> Ratios:
    """The ratios of these policies and of the optimum."""
    ratios: Ratios = {policy: {} for policy in (*policies, _OPTIMUM)}
    for capacity in capacities:
        say(f"{capacity:,} blocks")
        for policy in policies:
            ratios[policy][str(capacity)] = hit_blocks(trace, policy, capacity) / trace.asked
        ratios[_OPTIMUM][str(capacity)] = optimum_blocks(trace, capacity) / trace.asked
    return ratios


def chart(trace: Trace, ratios: Ratios) -> Table:
    """A bar for each policy at each capacity, all of one scale."""
    table = Table(
        title=f"{len(trace.requests):,} requests, {trace.asked:,} blocks asked for, {trace.blocks:,} different"
    )
    table.add_column("capacity", justify="right")
    table.add_column("policy")
    table.add_column("hit ratio", justify="right")
    table.add_column("")
    scale = _BAR_CELLS / (max(max(by_capacity.values()) for by_capacity in ratios.values()) or 1.0)
    for capacity in ratios[_OPTIMUM]:
        for policy, by_capacity in ratios.items():
            first, last = policy == next(iter(ratios)), policy == _OPTIMUM
            ratio = by_capacity[capacity]
            bar = "█" * round(ratio * scale)
            table.add_row(f"{int(capacity):,}" if first else "", policy, f"{ratio:.4f}", bar, end_section=last)
    return table


def _capacities(text: str) -> list[int]:
    try:
        capacities = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1000,5000") from None
    if min(capacities) < 1:
        raise argparse.ArgumentTypeError("a capacity is at least one block")
    return capacities


def _policies(text: str) -> tuple[str, ...]:
    if text == "all":
        return POLICIES
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"no policy is called {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    return names


COMMAND: Final = Command("replay", "Hit ratio against capacity for eviction policies, on a trace.", add_arguments, run)
