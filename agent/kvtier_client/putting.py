"""Puts of one client: they take turns at its one staging."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .connection import Connection
from .failures import BUSY, PROTOCOL, Deadline, Failure, RequestRefused
from .protocol.messages import Done, Put, PutReply, Reach, RefusalCode, Stage
from .staging import Part, Staging


@dataclass(frozen=True)
class PutStep:
    """One part of a put, with its pages' bytes."""

    layout: bytes
    part: Part
    data: tuple[memoryview, ...]
    reach: Reach


class Putter:
    """Thread-safe: `turn` lets one put at a time use the staging."""

    def __init__(self, staging_bytes: int) -> None:
        self.staging_bytes = staging_bytes
        self._turn = threading.Lock()
        self._staging: Staging | None = None
        self._closed = False

    @contextmanager
    def turn(self, deadline: Deadline) -> Iterator[None]:
        """The right to call `put_step`.

        Raises Failure when other puts have it until the deadline.
        """
        if not self._turn.acquire(timeout=deadline.remaining()):
            raise Failure(BUSY, "other puts had the staging until the deadline")
        try:
            yield
        finally:
            self._turn.release()
            self._drop_if_over()

    def put_step(self, step: PutStep, connection: Connection, deadline: Deadline, request_id: int) -> PutReply:
        """Fill the staging, offer it where this connection has not seen it, and put.

        Raises Failure. The staging is then given up, unless the agent refused and so does not read it: what it
        stores must not change under it.
        """
        try:
            staging = self._staging = self._staging or Staging(self.staging_bytes)
            placed = staging.fill(step.part, step.data)
            if connection.staging is not staging:
                connection.request(Stage(request_id, staging.size), Done, deadline, [staging.descriptor])
                connection.staging = staging
            put = Put(request_id, step.layout, step.part.parent, placed, step.reach, deadline.answer_within_ms())
            reply = connection.request(put, PutReply, deadline)
        except RequestRefused as refused:
            if refused.code is RefusalCode.BAD_STAGING:
                self.drop_staging()
            raise
        except BaseException:
            self.drop_staging()
            raise
        if not 0 <= reply.stored_pages + reply.known_pages <= len(placed):
            raise Failure(PROTOCOL, f"the agent's answer to {len(placed)} pages makes no sense: {reply}")
        return reply

    def close(self) -> None:
        """Give the staging up now, or when the put that uses it ends."""
        self._closed = True
        self._drop_if_over()

    def _drop_if_over(self) -> None:
        """Whoever comes last, the closing thread or the end of a turn, finds the lock free."""
        if self._closed and self._turn.acquire(blocking=False):
            self.drop_staging()
            self._turn.release()

    def drop_staging(self) -> None:
        """Give the staging up; the next put makes another. Only within a turn, or after a fork."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.close()
