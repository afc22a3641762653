"""Closes what clients sent, apart from the event loop.

The last close of a descriptor may last as long as its sender likes: a socket lingers, a file is flushed to wherever it
is. So may the close of a socket with such descriptors among what was not read from it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from queue import Empty, SimpleQueue
from typing import Final

_MOST_WAITING: Final = 1024
_IDLE_S: Final = 60.0
"""The thread ends when there was nothing to do for so long."""
_NO_LINGER: Final = struct.pack("ii", 0, 0)


class Closer:
    """Of one listener's clients: a close that does not end holds up theirs alone. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more may be taken from these clients."""
        return self._waiting.qsize() >= _MOST_WAITING

    def close(self, fd: int) -> None:
        """Take `fd` over. Returns at once."""
        os.set_inheritable(fd, True)  # else a store that starts anew has to wait for the close
        with self._lock:
            self._waiting.put(fd)
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, args=(_IDLE_S,), name="closer", daemon=True).start()
        except RuntimeError:  # there is no thread to be had
            self._run(0)

    def hang_up(self, sock: socket.socket) -> None:
        """Take a connection over. Its peer sees the end of it at once, whenever the close is."""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        self.close(sock.detach())

    def _run(self, idle_s: float) -> None:
        while True:
            try:
                _close(self._waiting.get(timeout=idle_s))
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._running = False
                        return


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        try:
            sock = socket.socket(fileno=fd)
        except OSError:  # it is none
            os.close(fd)
            return
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
