"""Builds the images from the command line: `python -m dev.images`."""

from __future__ import annotations

import sys

from dev.cluster.preflight import MachineLacks
from dev.cluster.processes import CommandFailed
from dev.images.build import build_images


def main() -> int:
    """Build, and print each image's reference and archive; the exit status."""
    try:
        images = build_images(lambda line: print(line, flush=True))
    except (MachineLacks, CommandFailed) as error:
        print(error, file=sys.stderr)
        return 1
    for image in images.values():
        print(f"{image.reference}\t{image.archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
