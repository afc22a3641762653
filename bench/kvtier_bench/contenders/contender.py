"""What every contender is given, and what it must do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvtier_bench.memory import Bytes, mapped_file, touched_memory


@dataclass(frozen=True)
class Task:
    """What is moved: the bytes of one file, in batches of pages."""

    source: str
    """The file; all contenders map the same one."""
    page_bytes: int
    batch_pages: int
    address: dict[str, str]
    """Where its server is, in the contender's own words."""

    @property
    def batch_bytes(self) -> int:
        """Of one call."""
        return self.page_bytes * self.batch_pages


class Buffers:
    """The source and a pre-touched, page-aligned destination of the same size."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.source = mapped_file(Path(task.source))
        self.destination = touched_memory(self.source.nbytes)

    def batch(self, memory: Bytes, batch: int) -> Bytes:
        """The part of `memory` that belongs to this batch."""
        size = self.task.batch_bytes
        return memory[batch * size : (batch + 1) * size]

    def pages(self, memory: Bytes, batch: int) -> list[Bytes]:
        """Its pages."""
        return list(self.batch(memory, batch).reshape(self.task.batch_pages, self.task.page_bytes))


class Contender(Protocol):
    """One cache, seen by one client with one calling thread. Any failure raises."""

    def put(self, batch: int, version: int) -> None:
        """Store the batch's pages under keys of `batch` and `version`; return once they can be read."""

    def get(self, batch: int, version: int) -> None:
        """Copy these pages to their places in the destination."""

    def drop(self, batch: int, version: int) -> None:
        """Give their memory back, for the next put to use again."""

    def close(self) -> None:
        """Disconnect."""
