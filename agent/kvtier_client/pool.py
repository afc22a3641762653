"""A client's connections: each call takes an idle one, or opens one of a few. Nothing here waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Final

from .connection import Connection
from .failures import BACKOFF, BUSY, CLIENT_CLOSED, Failure, RequestRefused
from .outage import Outage

MAX_CONNECTIONS: Final = 8

log = logging.getLogger("kvtier.client")

Turn = Connection | None
"""A connection for one call, or leave to open one."""


class ConnectionPool:
    """Thread-safe. Whoever has a turn ends it, once: with `succeeded`, `failed` or `drop`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._opening = 0
        self._waiting: deque[Future[Turn]] = deque()
        self._outage = Outage()
        self._closed = False

    def take(self) -> Turn | Future[Turn]:
        """A turn, or where none is free now the future of one; give it back with `give_up`.

        Raises Failure when the client is closed, or too many calls failed a moment ago.
        """
        with self._lock:
            if self._closed:
                raise Failure(CLIENT_CLOSED, "the client is closed")
            if not self._outage.admits(time.monotonic()):
                raise Failure(BACKOFF, "the agent failed a moment ago")
            while self._idle:
                connection = self._idle.pop()
                if connection.is_alive():
                    self._in_use.add(connection)
                    return connection
                connection.close()
            if len(self._in_use) + self._opening < MAX_CONNECTIONS:
                self._opening += 1
                return None
            future: Future[Turn] = Future()
            self._waiting.append(future)
            return future

    def give_up(self, future: Future[Turn]) -> Failure:
        """The caller waits no more for its turn: the failure to answer with. A turn that came meanwhile goes on."""
        if not future.cancel() and not future.exception():
            turn = future.result()
            if turn is None:
                self.not_opened()
            else:
                self.put_back(turn)
        return Failure(BUSY, f"all {MAX_CONNECTIONS} connections were in use")

    def opened(self, connection: Connection) -> None:
        """The leave to open was used."""
        with self._lock:
            self._opening -= 1
            self._in_use.add(connection)

    def not_opened(self) -> None:
        """The leave to open led to nothing; the next may try."""
        with self._lock:
            self._opening -= 1
            self._pass_on_leave()

    def put_back(self, connection: Connection) -> None:
        """The call is over and the connection still good: it is the next one's, once no release is due."""
        while True:
            with self._lock:
                if self._closed or connection.closed:
                    break
                if not connection.due_releases:
                    self._pass_on(connection)
                    return
            try:
                connection.send_due_releases()
            except Failure:
                break
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """The connection cannot be used any more."""
        connection.close()
        with self._lock:
            self._in_use.discard(connection)
            self._pass_on_leave()

    def release(self, connection: Connection, hold_id: int) -> None:
        """Give a hold back on the connection that got it: now if that is idle, else when it next is.

        A hold of a closed connection lapses by itself. Does not raise.
        """
        if connection.closed:  # before the lock: after a fork, the child's copy of it may be held for ever
            return
        with self._lock:
            connection.due_releases.append(hold_id)
            if connection not in self._idle:
                return
            self._idle.remove(connection)
            self._in_use.add(connection)
        self.put_back(connection)

    def tend(self) -> None:
        """Look after idle connections: take in what the agent sent, drop what has ended."""
        with self._lock:
            kept = []
            for connection in self._idle:
                if connection.is_alive():
                    kept.append(connection)
                else:
                    connection.close()
            self._idle = kept

    def close(self) -> None:
        """Close what is idle now and what is in use when it comes back; refuse further calls."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            waiting, self._waiting = self._waiting, deque()
        for connection in idle:
            connection.close()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(Failure(CLIENT_CLOSED, "the client is closed"))

    def abandon(self) -> None:
        """Close this process's copies of all descriptors, after a fork; the parent's stay usable."""
        for connection in [*self._idle, *self._in_use]:
            connection.close()

    def succeeded(self, connection: Connection) -> None:
        """The agent answered: the turn is over."""
        self._count_answer()
        self.put_back(connection)

    def failed(self, failure: Failure, began: float, connection: Connection | None) -> None:
        """The call failed, that began at this moment of the monotonic clock; its turn is over, if it had one.

        Failures in a row cause a pause, but not those that say nothing of the agent.
        """
        if isinstance(failure, RequestRefused):
            self._count_answer()
            if connection is not None:
                self.put_back(connection)
            return
        if failure.cause not in (BACKOFF, BUSY, CLIENT_CLOSED):
            with self._lock:
                first = not self._outage.ongoing
                self._outage.failed(began, time.monotonic())
            if first:
                log.warning("%s; until it answers again every call is a miss", failure)
        if connection is not None:
            self.drop(connection)

    def _count_answer(self) -> None:
        if not self._outage.ongoing:
            return
        with self._lock:
            over = self._outage.ongoing
            self._outage.succeeded()
        if over:
            log.info("the agent answers again")

    def _pass_on(self, connection: Connection) -> None:
        """To whoever waits longest, or make it idle."""
        while self._waiting:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(connection)
                return
        self._in_use.discard(connection)
        self._idle.append(connection)

    def _pass_on_leave(self) -> None:
        """Let whoever waits longest open a connection in place of one that is gone."""
        while self._waiting:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._opening += 1
                future.set_result(None)
                return
