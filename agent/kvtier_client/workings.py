"""What both faces of the client have inside: options, counts, connections, mappings, staging, threads."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from .areas import Areas
from .arena import ChunkMappings
from .attendant import Attendant
from .calls import Calls
from .checks import check_deadline
from .connection import Connection
from .copying import Copier
from .failures import Deadline, Failure
from .pool import ConnectionPool
from .staging import ALIGNMENT, StagingPool

SOCKET_VARIABLE: Final = "KVTIER_SOCKET"
DEFAULT_SOCKET: Final = "/run/kvtier/kvtier.sock"

log = logging.getLogger("kvtier.client")


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller said when making the client."""

    path: Path
    deadline_s: float
    put_deadline_s: float
    staging_bytes: int

    @classmethod
    def of(
        cls,
        socket_path: str | os.PathLike[str] | None,
        deadline_s: float,
        put_deadline_s: float,
        staging_bytes: int,
    ) -> Self:
        """The options, with the defaults filled in.

        Raises ValueError.
        """
        check_deadline(deadline_s)
        check_deadline(put_deadline_s)
        if staging_bytes < ALIGNMENT:
            raise ValueError(f"staging_bytes must be at least {ALIGNMENT}, not {staging_bytes}")
        path = Path(socket_path or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
        return cls(path, deadline_s, put_deadline_s, staging_bytes - staging_bytes % ALIGNMENT)

    def deadline(self, seconds: float | None) -> Deadline:
        """Of a call that begins now.

        Raises ValueError.
        """
        return Deadline(self.deadline_s if seconds is None else check_deadline(seconds))

    def put_deadline(self, seconds: float | None) -> Deadline:
        """Of a put that begins now.

        Raises ValueError.
        """
        return Deadline(self.put_deadline_s if seconds is None else check_deadline(seconds))

    def check_staging(self, size: int) -> None:
        """Raise ValueError unless an area of this size can be had."""
        if not 0 <= size <= self.staging_bytes:
            raise ValueError(f"staging is to be had up to {self.staging_bytes} bytes at once, not {size}")


class Workings:
    """All that a client must not share with a child process. Thread-safe."""

    def __init__(self, options: Options) -> None:
        self._lock = threading.Lock()
        self._misses: Counter[str] = Counter()
        self.attendant = Attendant()
        self.mappings = ChunkMappings(self.attendant.wake)
        self.pool = ConnectionPool()
        self.copier = Copier()
        self.stagings = StagingPool(options.staging_bytes)
        self.areas = Areas()
        self.calls = Calls(self.count, self.pool.release, options.staging_bytes)

    @property
    def misses(self) -> Counter[str]:
        """Failed calls by cause."""
        with self._lock:
            return self._misses.copy()

    def count(self, cause: str) -> None:
        """One more miss."""
        with self._lock:
            self._misses[cause] += 1

    def count_failure(self, failure: Failure) -> None:
        """One more miss, of a call that failed."""
        self.count(failure.cause)
        log.debug("a call failed: %s", failure)

    def connected(self, connection: Connection) -> None:
        """A connection was opened, with the pool's leave: it is looked after from now on."""
        self.pool.opened(connection)
        self.attendant.attend(self.pool, self.mappings)

    def close(self) -> None:
        """Give everything up that no call uses, and the rest when its call is over. May be repeated."""
        self.attendant.end()
        self.pool.close()
        self.stagings.close()
        self.copier.close()

    def abandon(self) -> None:
        """Close this process's copies of descriptors, after a fork."""
        self.pool.abandon()
        self.stagings.abandon()


class ClientBase:
    """What both faces of the client are made of."""

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        deadline_s: float = 1.0,
        put_deadline_s: float = 30.0,
        staging_bytes: int = 64 << 20,
    ) -> None:
        """Connects at the first call, so that the agent need not be there yet.

        `socket_path` is by default $KVTIER_SOCKET, or else /run/kvtier/kvtier.sock. `deadline_s` bounds each
        call, `put_deadline_s` each put, unless the call says otherwise. `staging_bytes` of this pod's memory are
        used at most for puts and `staging`, and up to as much again for a while after a put was not answered.
        Raises ValueError.
        """
        self._options = Options.of(socket_path, deadline_s, put_deadline_s, staging_bytes)
        self._workings = Workings(self._options)
        _forkable.add(self)

    @property
    def misses(self) -> Counter[str]:
        """Failed calls by cause, as counted up to now; a page that is merely absent is no failure.

        Causes: no_agent, timeout, closed, protocol, refused:CODE, backoff, busy, generation, size_mismatch,
        local, client_closed.
        """
        return self._workings.misses

    @property
    def staging_bytes(self) -> int:
        """The most that `staging` gives at once, and that a block's pages may take."""
        return self._options.staging_bytes

    def close(self) -> None:
        """Close the connections; later calls are misses. May be repeated. Held views stay readable."""
        _forkable.discard(self)
        self._workings.close()

    def _after_fork(self) -> None:
        self._workings.abandon()
        self._workings = Workings(self._options)


_forkable: weakref.WeakSet[ClientBase] = weakref.WeakSet()


def _reconnect_in_child() -> None:
    for client in list(_forkable):
        client._after_fork()


os.register_at_fork(after_in_child=_reconnect_in_child)
