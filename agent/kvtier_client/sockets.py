"""Unix sockets at paths of any length.

A socket address holds 107 bytes; a pod's volume folder is longer. Such a path is reached through
/proc/self/fd/N, where N is its folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .failures import NO_AGENT, Deadline, Failure

ADDRESS_BYTES: Final = 107
FULL_BACKLOG_PAUSE_S: Final = 0.005


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A name for `path` that fits a socket address, good within the context.

    Raises OSError when the folder cannot be opened.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path, deadline: Deadline) -> socket.socket:
    """A connected stream socket.

    Raises Failure: no_agent when nobody listens there, timeout while the backlog stays full.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        while True:
            sock.settimeout(deadline.remaining())
            if connect_now(sock, path):
                return sock
            time.sleep(min(FULL_BACKLOG_PAUSE_S, deadline.remaining()))
    except BaseException:
        sock.close()
        raise


def connect_now(sock: socket.socket, path: Path) -> bool:
    """Connect, or False when the backlog is full.

    Raises Failure: no_agent when nobody listens there.
    """
    try:
        with address_of(path) as address:
            sock.connect(address)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Failure(NO_AGENT, f"{path}: {error.strerror or error}") from error
    return True


def close_descriptor(descriptor: int) -> None:
    """Close it, if it is open."""
    with contextlib.suppress(OSError):
        os.close(descriptor)
