"""Redis or Valkey, with the usual Python client and its C parser, over a Unix socket or TCP."""

from __future__ import annotations

import importlib

import numpy as np

from kvtier_bench.contenders.contender import Buffers


class Valkey:
    """A Contender."""

    def __init__(self, buffers: Buffers) -> None:
        redis = importlib.import_module("redis")  # only the peers' environment has it
        self._buffers = buffers
        self._client = redis.Redis.from_url(buffers.task.address["url"])
        self._client.ping()

    def put(self, batch: int, version: int) -> None:
        """By MSET."""
        pages = self._buffers.pages(self._buffers.source, batch)
        self._client.mset(dict(zip(self._keys(batch, version), [page.data for page in pages], strict=True)))

    def get(self, batch: int, version: int) -> None:
        """By MGET, and a copy out of the client's bytes: it has no way to receive into memory."""
        values = self._client.mget(self._keys(batch, version))
        for page, value in zip(self._buffers.pages(self._buffers.destination, batch), values, strict=True):
            np.copyto(page, np.frombuffer(value, dtype=np.uint8))

    def drop(self, batch: int, version: int) -> None:
        """By DEL."""
        self._client.delete(*self._keys(batch, version))

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def _keys(self, batch: int, version: int) -> list[str]:
        return [f"{batch}-{version}-{page}" for page in range(self._buffers.task.batch_pages)]


def connect(buffers: Buffers) -> Valkey:
    """A client of the server at `url`."""
    return Valkey(buffers)
