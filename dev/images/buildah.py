"""buildah, with its storage in our cache and its mounts in a namespace that ends with it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dev.cluster import machine
from dev.cluster.processes import CommandFailed, run
from dev.images import cache

BUILD_S = 900
# Mounts and processes of an interrupted command end with its namespaces.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


class Buildah:
    """Builds images from Dockerfiles. Use under `cache.locked()`."""

    def __init__(self) -> None:
        storage = cache.folder() / "storage"
        driver = "overlay" if machine.overlay_works(cache.folder()) else "vfs"
        self._storage = (f"--root={storage}", f"--storage-driver={driver}")

    def run(self, *arguments: str) -> str:
        """What `buildah ARGUMENTS` prints. Raises CommandFailed."""
        with tempfile.TemporaryDirectory(prefix="run-", dir=cache.folder()) as state:
            command = [*ALONE, "buildah", *self._storage, f"--runroot={state}", *arguments]
            return run(command, timeout_s=BUILD_S)

    def has(self, reference: str) -> bool:
        """Whether the image is in the storage."""
        try:
            self.run("inspect", "--type=image", "--format={{.FromImageID}}", reference)
        except CommandFailed:
            return False
        return True

    def build(self, reference: str, dockerfile: Path, context: Path, **arguments: str) -> None:
        """Build `reference`; layers whose inputs are the same are not built again. Raises CommandFailed."""
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options = ["--isolation=chroot", "--layers", "--pull-never", "--format=oci", f"--file={dockerfile}"]
        self.run("build", *options, *given, f"--tag={reference}", str(context))

    def export(self, reference: str, archive: Path) -> None:
        """Write the image to an archive for `ctr images import`. Raises CommandFailed.

        Of buildah's archives only Docker's kind stays uncompressed, which is three times as fast, and this one never
        travels.
        """
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        self.run("push", reference, f"docker-archive:{partial}:{reference}")
        partial.rename(archive)

    def forget_others(self, name: str, kept: str) -> None:
        """Remove all tags of the image `name` but `kept`."""
        listed = self.run("images", "--format={{.Name}}:{{.Tag}}", "--filter=dangling=false").split()
        old = [reference for reference in listed if reference.rpartition(":")[0] == name and reference != kept]
        if old:
            self.run("rmi", *old)
