"""kvtier's client, and memcpy of the pages that it holds in place."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from kvtier_client.client import Client
from kvtier_client.results import BufferLike, Page

from kvtier_bench.contenders.contender import Buffers
from kvtier_bench.memory import Copier, address_of
from kvtier_bench.workload import LAYOUT, chain_hashes

_DEADLINE_S: Final = 30.0


class Ours:
    """A Contender that can also copy what it holds, as a reader of pages in place would."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._client = Client(
            buffers.task.address["socket"],
            deadline_s=_DEADLINE_S,
            put_deadline_s=_DEADLINE_S,
            staging_bytes=buffers.task.batch_bytes,
        )
        self._copiers = {threads: Copier(threads) for threads in {1, len(os.sched_getaffinity(0))}}

    def put(self, batch: int, version: int) -> None:
        """Store a chain of its own."""
        self._store(batch, version, self._buffers.pages(self._buffers.source, batch))

    def put_staged(self, batch: int, version: int) -> float:
        """Store pages that lie in staging already, as an engine leaves them there; the put's seconds."""
        task = self._buffers.task
        with self._client.staging(task.batch_bytes, deadline_s=_DEADLINE_S) as memory:
            memory[:] = self._buffers.batch(self._buffers.source, batch).data
            pages = [memory[at : at + task.page_bytes] for at in range(0, task.batch_bytes, task.page_bytes)]
            began = time.perf_counter()
            self._store(batch, version, pages)
            return time.perf_counter() - began

    def get(self, batch: int, version: int) -> None:
        """By `get_into`."""
        destination = self._buffers.pages(self._buffers.destination, batch)
        restored = self._client.get_into(LAYOUT, self._hashes(batch, version), destination)
        if restored.blocks != len(destination):
            raise OSError(f"{restored.blocks} of {len(destination)} pages; {dict(self._client.misses)}")

    def drop(self, batch: int, version: int) -> None:
        """Delete the chain."""
        if not self._client.delete(LAYOUT, self._hashes(batch, version)[:1]):
            raise OSError(f"not deleted: {dict(self._client.misses)}")

    def memcpy_1(self, batch: int, version: int) -> float:
        """The copy alone, of the same arena pages, by one thread; its seconds."""
        return self._memcpy(self._copiers[1], batch, version)

    def memcpy_all(self, batch: int, version: int) -> float:
        """The same by as many threads as there are processors."""
        return self._memcpy(self._copiers[max(self._copiers)], batch, version)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def _store(self, batch: int, version: int, pages: Sequence[BufferLike]) -> None:
        hashes = self._hashes(batch, version)
        stored = self._client.put(LAYOUT, None, [Page(*pair) for pair in zip(hashes, pages, strict=True)])
        if stored.reached is None:
            raise OSError(f"not stored: {dict(self._client.misses)}")

    def _memcpy(self, copier: Copier, batch: int, version: int) -> float:
        size = self._buffers.task.page_bytes
        destinations = [address_of(page) for page in self._buffers.pages(self._buffers.destination, batch)]
        with self._client.get(LAYOUT, self._hashes(batch, version)) as held:
            sources = [address_of(view) for view in held.views]
            return copier.copy(destinations, sources, size)

    def _hashes(self, batch: int, version: int) -> list[bytes]:
        return chain_hashes(batch, self._buffers.task.batch_pages, version)


def connect(buffers: Buffers) -> Ours:
    """A client of the store at `socket`."""
    return Ours(buffers)
