"""The local cluster from the command line: `python -m dev.cluster up`, `down`, `add-node`, `kubectl`, `helm`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from dev.cluster import Cluster
from dev.cluster.cgroups import CgroupBusy
from dev.cluster.layout import DEFAULT_NAME, REPOSITORY
from dev.cluster.preflight import MachineLacks
from dev.cluster.processes import CommandFailed
from dev.cluster.progress import ComponentFailed
from dev.cluster.tools import ToolsMissing

EXPECTED = (MachineLacks, ToolsMissing, ComponentFailed, CommandFailed, CgroupBusy, ValueError)


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    shown = argparse.ArgumentParser(prog="python -m dev.cluster", description=__doc__)
    shown.add_argument("--name", default=DEFAULT_NAME, help="which cluster (default: %(default)s)")
    commands = shown.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster; does nothing when it runs")
    up.add_argument("--nodes", type=int, default=1, help="how many nodes (default: %(default)s)")
    commands.add_parser("down", help="stop it and remove all it left, but for its logs")
    add = commands.add_parser("add-node", help="start one more node")
    add.add_argument("node", nargs="?", help="its name (default: the next of n1, n2, ...)")
    for program in ("kubectl", "helm"):
        through = commands.add_parser(program, help=f"run {program} as administrator", add_help=False)
        through.add_argument("arguments", nargs=argparse.REMAINDER)
    return shown


def up(cluster: Cluster, nodes: int) -> None:
    """Start the cluster unless it runs, and say how to use it."""
    if cluster.is_running():
        say("the cluster is up already")
    else:
        cluster.up(nodes)
        cluster.keep()
    say(f"export KUBECONFIG={cluster.kubeconfig}")
    say(f"export PATH={cluster.programs['kubectl'].parent}:$PATH")


def through(cluster: Cluster, program: str, arguments: list[str]) -> None:
    """Become `program`, talking to the cluster as administrator."""
    path = cluster.programs[program]
    os.execve(path, [program, *arguments], {**os.environ, **cluster.client_environment})


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C, so that what was started is taken down."""
    raise KeyboardInterrupt


def main() -> int:
    """Carry out one command; the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    options = parser().parse_args()
    try:
        cluster = Cluster(REPOSITORY / ".cluster" / options.name, options.name, say=say)
        match options.command:
            case "up":
                up(cluster, options.nodes)
            case "down":
                cluster.down()
                say(f"cluster {options.name} is down; its logs are in {cluster.logs}")
            case "add-node":
                cluster.add_node(options.node)
            case program:
                through(cluster, program, options.arguments)
    except EXPECTED as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was started is taken down", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
