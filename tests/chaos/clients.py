"""One client for each pool, as pods of different pools would have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kvtier_client.client import Client
from kvtier_client.protocol.messages import LAYOUT_BYTES

from tests.chaos.workload import Shape

ANSWER_S: Final = 5.0


class Clients:
    """A client per pool. A context manager; thread-safe as the clients are."""

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        """Connects at the first call. `sockets` by the pool's name."""
        self._clients = {pool: Client(socket) for pool, socket in sockets.items()}

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools."""
        return frozenset(self._clients)

    def of(self, shape: Shape) -> Client:
        """The client of the layout's pool."""
        return self._clients[shape.pool]

    def answers(self, pool: str) -> bool:
        """Whether the pool is served now."""
        client = self._clients[pool]
        client.lookup(bytes(LAYOUT_BYTES), [bytes(32)], deadline_s=ANSWER_S)
        return not client.misses

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
