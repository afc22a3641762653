"""Memory that clients made, from which puts are copied."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Final

from kvtier_client.protocol.messages import RefusalCode

from .closer import Closer
from .errors import Refusal

_NEEDED_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Staging:
    """One client's memory, kept open while a put reads it."""

    def __init__(self, fd: int, size: int, may_store: Callable[[], bool], closer: Closer) -> None:
        """Takes `fd` over; `may_store` tells whether its client still has the pool.

        Raises Refusal, and gives `fd` to `closer` then, unless it is sealed memory of `size` bytes.
        """
        try:
            check_staging(fd, size)
        except Refusal:
            closer.close(fd)
            raise
        self.fd, self.size, self.may_store = fd, size, may_store
        self._closer = closer
        self._users = 1

    def use(self) -> None:
        """Keep it open until one more `done`."""
        self._users += 1

    def done(self) -> None:
        """Undo one `use`, or give up the first one."""
        self._users -= 1
        if self._users == 0:
            self._closer.close(self.fd)


def check_staging(fd: int, size: int) -> None:
    """Raise Refusal unless `fd` is memory of at least `size` bytes, sealed so that it stays so."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise Refusal(RefusalCode.BAD_STAGING, f"the staging is no memfd: {error.strerror}") from error
    if seals & _NEEDED_SEALS != _NEEDED_SEALS:
        raise Refusal(RefusalCode.BAD_STAGING, "seal the staging with F_SEAL_SHRINK and F_SEAL_GROW")
    actual = os.fstat(fd).st_size
    if not 0 < size <= actual:
        raise Refusal(RefusalCode.BAD_STAGING, f"the staging has {actual} bytes, not {size}")
