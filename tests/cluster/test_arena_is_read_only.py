"""An engine that runs as root and maps the arena reads it in place, and can change nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.installation import Installation, cache_pool, engine_pod

ROOTS = "roots"
"""A namespace without Pod Security's restrictions, and a pod in it."""
ATTEMPTS = Path(__file__).with_name("attempts_on_the_arena.py")

REFUSALS = {
    "pwrite": "EBADF",
    "mmap": "EACCES",
    "mprotect": "EACCES",
    "write of /proc/self/mem": "EIO",
    "open of map_files": "EPERM",
    "open for writing": "EROFS",
    "open with O_TRUNC": "EROFS",
    "ftruncate": "EINVAL",
    "truncate": "EROFS",
    "fallocate": "EBADF",
    "fchmod": "EROFS",
    "fchown": "EROFS",
    "utime": "EROFS",
    "setxattr": "EROFS",
    "link": "EXDEV",
}


def test_root_that_maps_the_arena_reads_it_and_cannot_write(installation: Installation) -> None:
    kubectl = installation.kubectl
    pool = cache_pool()
    pod = engine_pod(ROOTS, "n1", installation.sidecar_image)
    pool["metadata"]["namespace"] = pod["metadata"]["namespace"] = ROOTS
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0, "runAsGroup": 0}
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ROOTS}}, pool])
    python = ("exec", "-i", "-n", ROOTS, ROOTS, "-c", "engine", "--", "python3", "-")
    said: dict[str, object] = {}

    def tried() -> bool:
        said.update(json.loads(kubectl(*python, stdin=ATTEMPTS.read_text())))
        return said["read"] == [True]

    with installation.running_pod(pod):
        installation.wait("the pool's blocks to be read", tried)
    kubectl("delete", "namespace", ROOTS, "--wait=false")
    assert said["user"] == 0
    assert said["intact"] == [True]
    assert said["outcomes"] == REFUSALS
