"""Carries flows out in the calling thread."""

from __future__ import annotations

import math
import select
import time
from typing import Final, TypeVar

from .connection import Connection
from .copying import Copier
from .failures import Deadline
from .flows import Copy, Flow, Pause, Receive, Run, Send, Step
from .protocol.messages import ToClient

AWAKE_S: Final = 200e-6
"""An answer is looked for so long before the thread sleeps: to be woken takes as long as most answers do."""

Result = TypeVar("Result")


def drive(flow: Flow[Result], deadline: Deadline, copier: Copier) -> Result:
    """The flow's result.

    Raises what the flow raises: Failure.
    """
    try:
        step = next(flow)
        while True:
            try:
                outcome = _carry_out(step, deadline, copier)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


def _carry_out(step: Step, deadline: Deadline, copier: Copier) -> ToClient | None:
    match step:
        case Receive(connection):
            return _receive(connection, deadline)
        case Send(connection, frame, descriptors):
            _send(connection, frame, descriptors, deadline)
        case Copy(copies, parallel):
            copier.copy(copies) if parallel else copies.run()
        case Run(work):
            work()
        case Pause(seconds):
            time.sleep(min(seconds, deadline.remaining()))
    return None


def _receive(connection: Connection, deadline: Deadline) -> ToClient:
    message = connection.received()
    awake_until = time.perf_counter() + AWAKE_S
    while message is None:
        if time.perf_counter() >= awake_until:
            _wait(connection, select.POLLIN, deadline)
        message = connection.receive_now()
    return message


def _send(connection: Connection, frame: bytes, descriptors: tuple[int, ...], deadline: Deadline) -> None:
    rest = memoryview(frame)
    while True:
        sent = connection.send_now(rest, descriptors)
        rest = rest[sent:]
        if not rest:
            return
        if sent:
            descriptors = ()
        _wait(connection, select.POLLOUT, deadline)


def _wait(connection: Connection, event: int, deadline: Deadline) -> None:
    """Until the socket is ready, or broken.

    Raises Failure past the deadline.
    """
    connection.ready.register(connection.sock, event)
    if not connection.ready.poll(math.ceil(deadline.remaining() * 1000)):
        raise deadline.passed()
