"""What both faces of the client have inside: options, counts, connections, staging, threads for copies."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from .areas import Areas
from .calls import Calls
from .checks import check_deadline
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
        if not 0 < size <= self.staging_bytes:
            raise ValueError(f"staging is to be had from 1 to {self.staging_bytes} bytes at once, not {size}")


class Workings:
    """Thread-safe."""

    def __init__(self, options: Options) -> None:
        self._lock = threading.Lock()
        self._misses: Counter[str] = Counter()
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

    def close(self) -> None:
        """Give everything up that no call uses, and the rest when its call is over. May be repeated."""
        self.pool.close()
        self.stagings.close()
        self.copier.close()

    def abandon(self) -> None:
        """Close this process's copies of descriptors, after a fork."""
        self.pool.abandon()
        self.stagings.abandon()
