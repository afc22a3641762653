"""The folder of built images, and content keys for what goes into them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dev.cluster.tools import cache_root

KEY_DIGITS = 12
SKIPPED = ("__pycache__", ".pytest_cache", ".mypy_cache")


def folder() -> Path:
    """Where archives, the base and the layers are kept, per user."""
    found = cache_root() / "images"
    found.mkdir(parents=True, exist_ok=True)
    return found


def key(*parts: str | bytes) -> str:
    """A short digest of `parts`; where one ends and the next begins counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:KEY_DIGITS]


def source_key(paths: Iterable[Path]) -> str:
    """A digest of the names and contents of all files in `paths`, themselves files or folders."""
    files: list[Path] = []
    for path in paths:
        files += _files(path) if path.is_dir() else [path]
    return key(*(part for file in sorted(files) for part in (str(file), file.read_bytes())))


def _files(path: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in SKIPPED]
        found += [Path(root) / name for name in names]
    return found


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keep other processes of this user from building images meanwhile."""
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep_newest(pattern: str, count: int) -> None:
    """Delete all but the `count` newest files in the cache that match `pattern`."""
    found = sorted(folder().glob(pattern), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in found[count:]:
        file.unlink(missing_ok=True)
