"""What no request can go below: as many bytes to another process and back, by plain sockets.

`python -m kvtier_bench.echo FD ASKED ANSWERED` is that process: for each ASKED bytes it sends ANSWERED.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, Self

import msgspec

_END_S: Final = 5.0


class Echo:
    """A context manager: the other process. One thread may use it."""

    def __init__(self, request: msgspec.Struct, answer_bytes: int) -> None:
        """`request` is encoded anew each time, as a client does."""
        self._request, self._answer_bytes = request, answer_bytes

    def __enter__(self) -> Self:
        self._sock, there = socket.socketpair()
        asked = len(msgspec.msgpack.encode(self._request))
        with there:
            numbers = (there.fileno(), asked, self._answer_bytes)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvtier_bench.echo", *map(str, numbers)], pass_fds=[there.fileno()]
            )
        self.seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
        self._process.wait(_END_S)

    def seconds(self) -> float:
        """There and back once."""
        began = time.perf_counter()
        self._sock.sendall(msgspec.msgpack.encode(self._request))
        self._sock.recv(self._answer_bytes, socket.MSG_WAITALL)
        return time.perf_counter() - began


def answer(sock: socket.socket, asked: int, answered: int) -> None:
    """Until the other side closes."""
    reply = bytes(answered)
    while sock.recv(asked, socket.MSG_WAITALL):
        sock.sendall(reply)


if __name__ == "__main__":
    answer(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
