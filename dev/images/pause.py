"""The image of the process that holds a pod's namespaces: a static program of twenty lines."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from dev.cluster.node_config import PAUSE_IMAGE
from dev.cluster.tools import GO_INSTALL, ToolsMissing, cache_root
from dev.images.archive import write_single_file_image

SOURCE = Path(__file__).parent / "pause_program"
USER = 65535
BUILD_S = 300


def pause_image() -> Path:
    """The archive with the pause image, built if it is not in the cache. Raises ToolsMissing without Go."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))).hexdigest()[:12]
    archive = cache_root() / "images" / f"pause-{digest}.tar"
    if not archive.exists():
        if shutil.which("go") is None:
            raise ToolsMissing(f"go is missing, and {PAUSE_IMAGE} must be built once: {GO_INSTALL}")
        program = archive.with_name(f"pause-{digest}.{os.getpid()}") / "pause"
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), "."]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=BUILD_S)
        write_single_file_image(archive, PAUSE_IMAGE, program, USER)
        program.unlink()
        program.parent.rmdir()
    return archive
