"""What one connection was told of chunks: descriptors go out ahead, so that clients have mapped them before a get."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvtier_client.protocol.messages import MAX_CHUNKS, Chunks

from .channel import Channel
from .core import Pool
from .store import Store

_AHEAD: Final = 256
"""Descriptors sent ahead before the client is heard of again: what it has not received yet counts against the limits
of the whole user."""


class Announcer:
    """Of one session. Event loop thread only."""

    def __init__(self, channel: Channel[Any], store: Store, pool: Pool) -> None:
        self._channel, self._store, self._pool = channel, store, pool
        self._known: set[int] = set()
        self._ahead = 0

    def heard(self) -> None:
        """The client said something, and so it has read what came before."""
        self._ahead = 0

    def added(self, chunk: int) -> None:
        """Tell of a new chunk, if the client keeps up; else the first reply that names it does."""
        self.ahead((chunk,))

    def ahead(self, chunks: Iterable[int]) -> None:
        """Tell of chunks before they are needed, as far as the client keeps up."""
        fresh = [chunk for chunk in chunks if chunk not in self._known]
        fresh = fresh[: _AHEAD - self._ahead]
        if fresh and self._channel.idle and not self._channel.closed:
            try:
                self._send(fresh, [])
                self._ahead += len(fresh)
            except OSError:  # out of descriptors: a reply that needs them says so
                return

    def gone(self, chunk: int) -> None:
        """Tell that a chunk may be unmapped; later, if the client does not keep up."""
        if chunk in self._known and self._channel.idle and not self._channel.closed:
            self._known.discard(chunk)
            self._channel.send(Chunks([], [chunk]))

    def before_reply(self, chunks: Sequence[int]) -> None:
        """Tell of those that the client does not know, before a reply that names them. Raises OSError."""
        if self._known.issuperset(chunks):
            return
        gone = [chunk for chunk in self._known if not self._store.has_chunk(chunk)]
        self._known.difference_update(gone)
        self._send([chunk for chunk in chunks if chunk not in self._known], gone)

    def _send(self, fresh: Sequence[int], gone: list[int]) -> None:
        for start in range(0, len(fresh), MAX_CHUNKS):
            ids = list(fresh[start : start + MAX_CHUNKS])
            fds: list[int] = []
            try:
                for chunk in ids:
                    fds.append(self._store.descriptors.duplicate(self._pool.uid, chunk))  # noqa: PERF401
            except OSError:
                for fd in fds:
                    os.close(fd)
                raise
            self._channel.send(Chunks(ids, gone), fds)
            self._known.update(ids)
            gone = []
