"""Advisory locks on files in the arena: one store, and one owner of each mover number.

flock locks belong to the open file, so that the kernel frees them when the owner is gone, and no
sooner: a killed process that still hangs in a device keeps its own.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .errors import LockHeld
from .log import log

_POLL_S: Final = 0.05
_REPORT_S: Final = 2.0


class FileLock:
    """An exclusive lock on one file, held until release or the process's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Whether the lock is held now. Raises OSError."""
        if self._fd is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            self._fd = fd
        return True

    def acquire(self, wait_s: float) -> None:
        """Wait for the lock, blocking. Raises LockHeld, OSError."""
        for pause_s in self.attempts(wait_s):
            time.sleep(pause_s)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def attempts(self, wait_s: float) -> Iterator[float]:
        """Try until the lock is held, yielding how long to pause before the next attempt.

        With a line in the log every two seconds. Raises LockHeld, OSError.
        """
        started = report_at = time.monotonic()
        while not self.try_acquire():
            waited_s = time.monotonic() - started
            if waited_s >= wait_s:
                raise LockHeld(str(self.path), waited_s)
            if started + waited_s >= report_at:
                report_at += _REPORT_S
                log("lock.waiting", path=self.path, waited_s=round(waited_s, 1))
            yield _POLL_S
