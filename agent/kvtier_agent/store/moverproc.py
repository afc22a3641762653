"""The process of a mover: its lock, its end, and the jobs that come over its socket.

A mover dies with its parent, and holds its lock file's lock while it lives, so that whoever gets the
lock knows that none of its I/O is in flight.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.receiving import receive_into

from . import jobs
from .errors import FormatRefused, LockHeld, StoreError
from .locks import FileLock
from .log import log
from .scheduling import step_back

_PR_SET_PDEATHSIG: Final = 1
_RECEIVE_BYTES: Final = 1 << 20
_LOCK_WAIT_S: Final = 60.0

Reply = Callable[[msgspec.Struct], None]


class Carrier(Protocol):
    """What a mover can do."""

    takes_fd: tuple[type, ...]
    """Kinds of jobs that come with a descriptor."""

    def carry_out(self, job: Any, fd: int | None, reply: Reply) -> None:
        """Do the job, with one reply for each part of its result. With several threads it runs in any of them.

        What it raises (FormatRefused, StoreError, OSError) becomes the last reply.
        """

    def forget(self, pool_uid: str, chunk: int) -> None:
        """Unmap a chunk that is gone."""


class _Channel:
    """The socket to the index process; any thread may reply."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()

    def reply(self, message: msgspec.Struct) -> None:
        data = encode_frame(message)
        with self._lock:
            self.sock.sendall(data)


def serve(sock: socket.socket, carrier: Carrier, union: Any, threads: int) -> None:
    """Carry out jobs until the other end closes: one after the other, or up to `threads` at once."""
    channel = _Channel(sock)
    decoder: FrameDecoder[Any] = FrameDecoder(union)
    fds: deque[int] = deque()
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    executor = ThreadPoolExecutor(threads) if threads > 1 else None
    channel.reply(jobs.Ready())
    while True:
        size, received, _ = receive_into(sock, buffer)
        fds.extend(received)
        if not size:
            os._exit(0)  # what threads still do is for nobody
        for message in decoder.feed(buffer[:size]):
            if isinstance(message, jobs.ForgetChunk):
                carrier.forget(message.pool, message.chunk)
                continue
            fd = fds.popleft() if isinstance(message, carrier.takes_fd) else None
            if executor is None:
                _carry_out(carrier, message, fd, channel.reply)
            else:
                executor.submit(_carry_out, carrier, message, fd, channel.reply)


def _carry_out(carrier: Carrier, job: Any, fd: int | None, reply: Reply) -> None:
    try:
        carrier.carry_out(job, fd, reply)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except FormatRefused as error:
        reply(jobs.Failed(job.id, 0, str(error), refused=True))
    except OSError as error:
        reply(jobs.Failed(job.id, error.errno or 0, str(error)))
    except StoreError as error:
        reply(jobs.Failed(job.id, 0, str(error)))
    except Exception as error:  # a defect: the job fails, and the log says where
        log("mover.job_failed", job=type(job).__name__, error=repr(error))
        reply(jobs.Failed(job.id, 0, repr(error)))
    finally:
        if fd is not None:
            os.close(fd)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def run_mover(
    union: Any,
    make: Callable[[argparse.Namespace], Carrier],
    *,
    threads: int = 1,
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> int:
    """Entry point of a mover process. `union`: the messages that it takes."""
    parser = argparse.ArgumentParser(description="A mover of kvtier-store. Started by it, not by hand.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--lock", required=True, help="name of its lock file in the arena")
    parser.add_argument("--arena", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    add_arguments(parser)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the store ends its movers itself, once their writes are done
    step_back()
    sock = socket.socket(fileno=arguments.fd)
    lock = FileLock(arguments.arena / "movers" / arguments.lock)
    try:
        lock.acquire(_LOCK_WAIT_S)
        serve(sock, make(arguments), union, threads)
    except LockHeld as error:
        log("mover.lock_held", lock=arguments.lock, error=error)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        pass
    return 0
