"""The `kvtier` command: `kvtier bench` and what else people run by hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvtier_bench.commands import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit code 0, or what the subcommand says."""
    parser = argparse.ArgumentParser(prog="kvtier", description="Measures and studies the kvtier store.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.summary, description=command.summary)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    parsed = parser.parse_args(arguments)
    code: int = parsed.run(parsed)
    return code
