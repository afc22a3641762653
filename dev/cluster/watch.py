"""Takes a cluster down when the process that started it dies: `python -m dev.cluster.watch FOLDER NAME`.

Standard input is a pipe from that process. If it ends without the word `keep`, the cluster is removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dev.cluster import removal
from dev.cluster.layout import Layout


def main(folder: str, name: str) -> None:
    """Wait for the word, or for the end."""
    if sys.stdin.read() != removal.KEEP:
        removal.remove(Layout(Path(folder), name))


if __name__ == "__main__":
    main(*sys.argv[1:])
