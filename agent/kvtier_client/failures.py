"""Why a call could not be carried out. Inside the client only: callers see a miss and a count.

Failure
└── RequestRefused    the agent answered; its connection is still good
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .protocol.messages import RefusalCode

NO_AGENT: Final = "no_agent"
"""Nobody listens at the socket, or it may not be used."""
TIMEOUT: Final = "timeout"
"""The agent did not answer within the deadline."""
CLOSED: Final = "closed"
"""The connection ended in the middle of a call."""
PROTOCOL: Final = "protocol"
"""The agent sent what is not the protocol."""
BACKOFF: Final = "backoff"
"""The call came soon after failures and was not tried."""
BUSY: Final = "busy"
"""All connections, or the staging, were in use until the deadline."""
GENERATION: Final = "generation"
"""A page was overwritten while it was read."""
SIZE_MISMATCH: Final = "size_mismatch"
"""A page has another size than the caller's buffer."""
LOCAL: Final = "local"
"""This process ran out of descriptors or memory."""
CLIENT_CLOSED: Final = "client_closed"
"""The call came after `close()`."""

ANSWER_MARGIN: Final = 0.1
"""The part of the time left that is kept back for an answer's way..."""
LONGEST_MARGIN_S: Final = 0.1
"""...but never more than this."""


class Failure(Exception):
    """The call failed and its connection cannot be used any more. Count `cause`, answer with a miss."""

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)


class RequestRefused(Failure):
    """The agent refused this request and changed nothing. Count it; the connection stays."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        self.code = code
        super().__init__(f"refused:{code}", f"the agent refused ({code}): {message}")


class Deadline:
    """A moment by which a whole call is over, however many socket operations it takes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, above 0.

        Raises Failure when none are.
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise self.passed()
        return left

    def answer_within_ms(self) -> int:
        """Milliseconds, at least 1, after which the agent should answer with what it has.

        A little of the time left is kept back for the answer's way. Raises Failure when the deadline has passed.
        """
        left = self.remaining()
        return max(1, int((left - min(LONGEST_MARGIN_S, left * ANSWER_MARGIN)) * 1000))

    def passed(self) -> Failure:
        """The failure of a call that is past this deadline."""
        return Failure(TIMEOUT, f"no answer within {self._seconds:g} s")


@contextmanager
def failing_as(deadline: Deadline, cause: str) -> Iterator[None]:
    """Turn what a socket raises into a Failure: past the deadline, or else of `cause`."""
    try:
        yield
    except TimeoutError as error:
        raise deadline.passed() from error
    except OSError as error:
        raise Failure(cause, error.strerror or str(error)) from error
