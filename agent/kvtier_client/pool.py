"""A client's connections: each call borrows an idle one, or opens one of a few."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .connection import Connection
from .failures import BACKOFF, BUSY, CLIENT_CLOSED, Deadline, Failure, RequestRefused
from .outage import Outage

MAX_CONNECTIONS: Final = 8

log = logging.getLogger("kvtier.client")


class ConnectionPool:
    """Thread-safe. The lock is never held while a socket is waited for."""

    def __init__(self, open_connection: Callable[[Deadline], Connection]) -> None:
        self._open_connection = open_connection
        self._changed = threading.Condition(threading.Lock())
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._opening = 0
        self._outage = Outage()
        self._closed = False

    @contextmanager
    def borrow(self, deadline: Deadline) -> Iterator[Connection]:
        """A connection for one call. One that fails is closed, and failures in a row cause a pause.

        Raises Failure, its own or the call's.
        """
        began = time.monotonic()
        connection = None
        try:
            connection = self._take(deadline)
            yield connection
        except RequestRefused:
            self._succeeded()
            raise
        except Failure as failure:
            self._failed(failure, began)
            self._drop(connection)
            raise
        except BaseException:
            self._drop(connection)
            raise
        else:
            self._succeeded()
        finally:
            if connection is not None and not connection.closed:
                self._put_back(connection)

    def release(self, connection: Connection, hold_id: int) -> None:
        """Give a hold back on the connection that got it: now if that is idle, else when it next is.

        A hold of a closed connection lapses by itself. Does not raise.
        """
        if connection.closed:  # before the lock: after a fork, the child's copy of it may be held for ever
            return
        with self._changed:
            connection.due_releases.append(hold_id)
            if connection not in self._idle:
                return
            self._idle.remove(connection)
            self._in_use.add(connection)
        self._put_back(connection)

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back; refuse further calls."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """Close this process's copies of all descriptors, after a fork; the parent's stay usable."""
        for connection in [*self._idle, *self._in_use]:
            connection.close()

    def _take(self, deadline: Deadline) -> Connection:
        with self._changed:
            self._check_admitted()
            while True:
                if self._closed:
                    raise Failure(CLIENT_CLOSED, "the client is closed")
                connection = self._living_idle()
                if connection is not None:
                    self._in_use.add(connection)
                    return connection
                if len(self._in_use) + self._opening < MAX_CONNECTIONS:
                    self._opening += 1
                    break
                if not self._changed.wait(deadline.remaining()):
                    raise Failure(BUSY, f"all {MAX_CONNECTIONS} connections were in use")
        connection = None
        try:
            connection = self._open_connection(deadline)
        finally:
            with self._changed:
                self._opening -= 1
                if connection is not None:
                    self._in_use.add(connection)
                self._changed.notify()
        return connection

    def _check_admitted(self) -> None:
        if not self._outage.admits(time.monotonic()):
            raise Failure(BACKOFF, "the agent failed a moment ago")

    def _living_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            connection.close()
        return None

    def _put_back(self, connection: Connection) -> None:
        """Make it idle, once no release is due. Closes it when that fails or the pool is closed."""
        while True:
            with self._changed:
                if self._closed or connection.closed:
                    break
                if not connection.due_releases:
                    self._in_use.discard(connection)
                    self._idle.append(connection)
                    self._changed.notify()
                    return
            try:
                connection.send_due_releases()
            except Failure:
                break
        self._drop(connection)

    def _drop(self, connection: Connection | None) -> None:
        if connection is None:
            return
        connection.close()
        with self._changed:
            self._in_use.discard(connection)
            self._changed.notify()

    def _succeeded(self) -> None:
        with self._changed:
            over = self._outage.ongoing
            self._outage.succeeded()
        if over:
            log.info("the agent answers again")

    def _failed(self, failure: Failure, began: float) -> None:
        if failure.cause in (BACKOFF, BUSY, CLIENT_CLOSED):
            return
        with self._changed:
            first = not self._outage.ongoing
            self._outage.failed(began, time.monotonic())
        if first:
            log.warning("%s; until it answers again every call is a miss", failure)
