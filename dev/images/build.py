"""Builds the project's images; what has not changed is taken from the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import preflight
from dev.cluster.layout import REPOSITORY
from dev.images import cache, python_packages
from dev.images.base import Base, ensure_base
from dev.images.buildah import Buildah

HERE = Path(__file__).parent
KEPT_ARCHIVES = 2


@dataclass(frozen=True)
class Part:
    """What makes one image: the extra of the project that it needs, and the project's packages that it holds."""

    extra: str
    packages: tuple[str, ...]

    def sources(self) -> list[Path]:
        """What the image's content follows from, beside its dependencies and its base."""
        folders = ("agent", "crds", "operator")
        found = [REPOSITORY / folder / package for package in self.packages for folder in folders]
        if python_packages.NATIVE in self.packages:
            found += [python_packages.NATIVE_FOLDER / name for name in python_packages.NATIVE_SOURCES]
        return [path for path in found if path.exists()] + [REPOSITORY / "pyproject.toml"]


PARTS = {
    "operator": Part("operator", ("kvtier_operator", "kvtier_crds")),
    "agent": Part("agent", ("kvtier_agent", "kvtier_client", "kvtier_crds", python_packages.NATIVE)),
    "sidecar": Part("client", ("kvtier_client",)),
}


@dataclass(frozen=True)
class Image:
    """A built image: the name by which pods ask for it, and the archive that has it."""

    reference: str
    archive: Path

    @property
    def repository(self) -> str:
        """The reference without its tag."""
        return self.reference.rpartition(":")[0]

    @property
    def tag(self) -> str:
        """The reference's tag."""
        return self.reference.rpartition(":")[2]


def build_images(say: Callable[[str], None] = lambda _: None) -> dict[str, Image]:
    """The images `operator`, `agent` and `sidecar` of the sources as they are now. Needs root.

    Raises MachineLacks, CommandFailed.
    """
    preflight.ensure(preflight.FOR_IMAGES, say)
    with cache.locked():
        buildah = Buildah()
        base = ensure_base(buildah, say)
        return {name: _build(name, part, base, buildah, say) for name, part in PARTS.items()}


def _build(name: str, part: Part, base: Base, buildah: Buildah, say: Callable[[str], None]) -> Image:
    """Build one image unless the cache has it."""
    dockerfile = HERE / f"{name}.Dockerfile"
    dependencies = python_packages.dependencies(part.extra, base.python)
    tag = cache.key(base.reference, dependencies.name, cache.source_key([*part.sources(), dockerfile]))
    image = Image(f"kvtier.local/{name}:{tag}", cache.folder() / f"{name}-{tag}.tar")
    if image.archive.exists():
        os.utime(image.archive)
        return image
    say(f"building the image {image.reference}")
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache.folder()) as folder:
        context = Path(folder)
        shutil.copytree(dependencies, context / "dependencies", copy_function=os.link)
        python_packages.project(context / "project", base.python, part.packages)
        python_packages.launchers(context / "bin")
        buildah.build(image.reference, dockerfile, context, BASE=base.reference)
    buildah.export(image.reference, image.archive)
    buildah.forget_others(image.repository, image.reference)
    cache.keep_newest(f"{name}-*.tar", KEPT_ARCHIVES)
    return image
