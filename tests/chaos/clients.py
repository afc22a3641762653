"""One client for each pool, as pods of different pools would have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kvtier_client.client import Client

from tests.chaos.workload import Shape


class Clients:
    """A client per pool. A context manager; thread-safe as the clients are."""

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        """Connects at the first call. `sockets` by the pool's name."""
        self._clients = {pool: Client(socket) for pool, socket in sockets.items()}

    def of(self, shape: Shape) -> Client:
        """The client of the layout's pool."""
        return self._clients[shape.pool]

    def close(self) -> None:
        """Close all. May be repeated."""
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
