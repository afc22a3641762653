"""Read-only descriptors of chunks, opened where clients may have them, and kept: opening one must not delay a get."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from typing import Final

from .core import Core
from .log import log

_PART_OF_LIMIT: Final = 4
"""Of the process's descriptors, this part is for chunks; beyond, the least recently sent ones are closed."""


class Descriptors:
    """Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fds: OrderedDict[int, int] = OrderedDict()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = max(64, soft // _PART_OF_LIMIT)

    def add(self, pool_uid: str, chunk: int) -> None:
        """The chunk is there: open it before it is needed."""
        try:
            self._open(pool_uid, chunk)
        except OSError as error:
            log("chunk.not_opened", pool=pool_uid, chunk=f"{chunk:x}", error=error)

    def duplicate(self, pool_uid: str, chunk: int) -> int:
        """A descriptor of the chunk for one client; the caller closes it. Raises OSError."""
        return os.dup(self._open(pool_uid, chunk))

    def forget(self, chunk: int) -> None:
        """The chunk is gone."""
        fd = self._fds.pop(chunk, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close all."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _open(self, pool_uid: str, chunk: int) -> int:
        fd = self._fds.get(chunk)
        if fd is None:
            fd = os.open(self._core.client_chunk_path(pool_uid, chunk), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._fds) >= self._limit:
                os.close(self._fds.popitem(last=False)[1])
            self._fds[chunk] = fd
        else:
            self._fds.move_to_end(chunk)
        return fd
