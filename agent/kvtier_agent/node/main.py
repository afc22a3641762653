"""kvtier-node: root on every node, small. CSI plugin, pods' sockets, arena mount, device folders.

This module is the command. It loads the rest only to serve: the kubelet runs `--probe` again and again,
and it must answer at once on a node that is short of CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvtier_crds.names import HOST_ROOT

HEARTBEAT: Final = Path(HOST_ROOT, "heartbeat")
SILENT_S: Final = 30.0
"""A kvtier-node that has not shown itself for this long hangs; it does every five seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the node until SIGTERM, or probe the one that does. Exit status 2: it lacks what it needs."""
    options = _parser().parse_args(argv)
    if options.probe:
        return probe(HEARTBEAT, time.time())
    from kvtier_agent.cachenode import NotInCluster
    from kvtier_agent.node.service import serve

    try:
        serve(options.node_name, options.kubelet_dir, options.host_root, HEARTBEAT)
    except (NotInCluster, OSError) as error:
        print(f"kvtier-node: {error}", file=sys.stderr)
        return 2
    return 0


def probe(heartbeat: Path, now_s: float) -> int:
    """0 when kvtier-node has shown itself lately, else 1 and why on stderr."""
    try:
        silent_s = now_s - heartbeat.stat().st_mtime
    except FileNotFoundError:
        print(f"kvtier-node has not started: there is no {heartbeat}", file=sys.stderr)
        return 1
    if silent_s > SILENT_S:
        print(f"kvtier-node has been silent for {silent_s:.0f} s; it is allowed {SILENT_S:.0f} s", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvtier-node", description="The root part of kvtier's agent on a node.")
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME"), help="name of the Node object [NODE_NAME]")
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path(os.environ.get("KUBELET_DIR", "/var/lib/kubelet")),
        help="the kubelet's folder, at its own path [KUBELET_DIR, %(default)s]",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path(os.environ.get("HOST_ROOT", "/host")),
        help="where the node's / is mounted [HOST_ROOT, %(default)s]",
    )
    parser.add_argument("--probe", action="store_true", help="ask whether the running kvtier-node is alive")
    return parser


if __name__ == "__main__":
    sys.exit(main())
