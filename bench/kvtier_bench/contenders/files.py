"""Plain files, one for each page, read from the page cache."""

from __future__ import annotations

from pathlib import Path

from kvtier_bench.contenders.contender import Buffers


class Files:
    """A Contender."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._folder = Path(buffers.task.address["folder"])

    def put(self, batch: int, version: int) -> None:
        """Write a file for each page, not flushed."""
        for path, page in zip(
            self._paths(batch, version), self._buffers.pages(self._buffers.source, batch), strict=True
        ):
            with path.open("wb", buffering=0) as file:
                file.write(page.data)

    def get(self, batch: int, version: int) -> None:
        """Read each file into its place."""
        for path, page in zip(
            self._paths(batch, version), self._buffers.pages(self._buffers.destination, batch), strict=True
        ):
            with path.open("rb", buffering=0) as file:
                file.readinto(page.data)

    def drop(self, batch: int, version: int) -> None:
        """Remove the files."""
        for path in self._paths(batch, version):
            path.unlink()

    def close(self) -> None:
        """There is nothing to disconnect."""

    def _paths(self, batch: int, version: int) -> list[Path]:
        return [self._folder / f"{batch}-{version}-{page}" for page in range(self._buffers.task.batch_pages)]


def connect(buffers: Buffers) -> Files:
    """Files in `folder`."""
    return Files(buffers)
