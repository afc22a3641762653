"""What every scenario gets: where it may work, how much, and a voice."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier_bench.figures import CannotRun, Figure
from kvtier_bench.iogroup import IoGroup
from kvtier_bench.store import Store, StoreSpec

SHARED_MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "kvtier-bench"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    scratch: Path
    """A folder on the disk to be measured."""
    quick: bool = False
    """Smaller data: to see that it runs, not to be quoted."""
    soak_minutes: float = 30.0
    peers: Path = Path()
    """Where the peers' environment is kept."""


@dataclass(frozen=True)
class Context:
    """One scenario's means. Its folders are gone when it ends."""

    options: Options
    disk: Path
    memory: Path
    say: Callable[[str], None]

    def scaled(self, full: int, quick: int) -> int:
        """`full`, or `quick` in a quick run."""
        return quick if self.options.quick else full

    def store(self, spec: StoreSpec, group: IoGroup | None = None, name: str = "store") -> Store:
        """A new store that does not run yet."""
        return Store(spec, self.disk / name, self.memory / f"{name}-arena", group)

    def need_disk(self, size: int) -> None:
        """Raise CannotRun unless so many bytes are free on the disk, and some to spare."""
        free = shutil.disk_usage(self.disk).free
        if free < size * 1.15:
            raise CannotRun(f"{size >> 20} MiB needed, {free >> 20} MiB free on {self.options.scratch}; see --scratch")

    def need_memory(self, size: int) -> None:
        """Raise CannotRun unless so many bytes of memory are available."""
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:") and int(line.split()[1]) * 1024 < size:
                raise CannotRun(f"{size >> 20} MiB of memory needed, {int(line.split()[1]) >> 10} MiB are available")


@dataclass(frozen=True)
class Scenario:
    """One thing to measure."""

    name: str
    """For `--only`."""
    what: str
    keys: tuple[str, ...]
    """Every key that `run` yields when nothing fails."""
    run: Callable[[Context], Iterable[Figure]]
    """Yields figures as they are measured. Raises CannotRun."""


@contextlib.contextmanager
def open_context(options: Options, say: Callable[[str], None]) -> Iterator[Context]:
    """Folders for one scenario; remains of runs that were killed are removed first."""
    own = f"{PREFIX}-{os.getpid()}-"
    for place in (options.scratch, SHARED_MEMORY):
        for folder in place.glob(f"{PREFIX}-*"):
            if not Path("/proc", folder.name.removeprefix(f"{PREFIX}-").partition("-")[0]).exists():
                shutil.rmtree(folder, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=own, dir=options.scratch) as disk,
        tempfile.TemporaryDirectory(prefix=own, dir=SHARED_MEMORY) as memory,
    ):
        yield Context(options, Path(disk), Path(memory), say)
