"""What calls do on a connection, step by step, without waiting: a driver carries each step out in its own way.

A flow is a generator. It yields steps, gets a step's outcome sent back (or its failure thrown in), and returns its
result. The threads' driver is `driving.py`, asyncio's `aio/driving.py`; both faces of the client share every flow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from .arena import ChunkMappings
from .connection import Connection, client_name
from .copying import Copies
from .failures import PROTOCOL, Failure, RequestRefused
from .protocol.frames import encode_frame
from .protocol.messages import (
    PROTOCOL_VERSIONS,
    Delete,
    Done,
    Get,
    GetReply,
    Handover,
    Hello,
    HelloReply,
    Hold,
    HoldReply,
    Lookup,
    LookupReply,
    Pin,
    PinReply,
    Prefetch,
    PrefetchReply,
    Put,
    PutReply,
    Refused,
    Stage,
    ToClient,
)
from .sockets import FULL_BACKLOG_PAUSE_S


class Send(NamedTuple):
    """Send all of a frame. Outcome: None."""

    connection: Connection
    frame: bytes
    descriptors: tuple[int, ...] = ()


class Receive(NamedTuple):
    """Wait for the agent's next message, which is the outcome."""

    connection: Connection


class Pause(NamedTuple):
    """Wait a little. Outcome: None."""

    seconds: float


class Copy(NamedTuple):
    """Carry out copies, `parallel` by several threads where that is faster. Outcome: None."""

    copies: Copies
    parallel: bool


class Run(NamedTuple):
    """Run work of the caller's that may take its time. Outcome: None; what it raises is the call's to raise."""

    work: Callable[[], None]


Step: TypeAlias = Send | Receive | Pause | Copy | Run
Result = TypeVar("Result")
Flow: TypeAlias = Generator[Step, Any, Result]

Request = Lookup | Get | Hold | Prefetch | Stage | Put | Delete | Pin
Reply = TypeVar("Reply", LookupReply, GetReply, HoldReply, PrefetchReply, PutReply, PinReply, Done)


def open_connection(path: Path, mappings: ChunkMappings) -> Flow[Connection]:
    """Connect to the socket at `path`, follow a handover, and agree on a version.

    Raises Failure.
    """
    connection = Connection.fresh(mappings)
    try:
        while not connection.connect_now(path):
            yield Pause(FULL_BACKLOG_PAUSE_S)
        answer = yield from _greet(connection)
        if isinstance(answer, Handover):
            handed = connection.handed_over()
            connection.close()
            connection = handed
            answer = yield from _greet(connection)
        if not isinstance(answer, HelloReply):
            raise Failure(PROTOCOL, f"the agent answered a hello with {type(answer).__name__}")
        if not PROTOCOL_VERSIONS[0] <= answer.version <= PROTOCOL_VERSIONS[1]:
            raise Failure(PROTOCOL, f"the agent chose version {answer.version}, which was not offered")
    except BaseException:
        connection.close()
        raise
    return connection


def _greet(connection: Connection) -> Flow[ToClient]:
    yield Send(connection, encode_frame(Hello(PROTOCOL_VERSIONS, client_name())))
    answer: ToClient = yield Receive(connection)
    if isinstance(answer, Refused):
        raise Failure(f"refused:{answer.code}", f"the agent refused ({answer.code}): {answer.message}")
    return answer


def ask(
    connection: Connection, request: Request, answer: type[Reply], descriptors: tuple[int, ...] = ()
) -> Flow[Reply]:
    """Send one request and wait for its `answer`.

    Raises RequestRefused when the agent refuses it, Failure on anything else.
    """
    yield Send(connection, encode_frame(request), descriptors)
    return (yield from answer_to(connection, request, answer))


def answer_to(connection: Connection, request: Request, answer: type[Reply]) -> Flow[Reply]:
    """Wait for an `answer` to what was sent.

    Raises as `ask` does.
    """
    reply = yield Receive(connection)
    if isinstance(reply, Refused) and reply.request_id == request.request_id:
        raise RequestRefused(reply.code, reply.message)
    if isinstance(reply, Refused):
        raise Failure(f"refused:{reply.code}", f"the agent refused ({reply.code}): {reply.message}")
    if not isinstance(reply, answer) or reply.request_id != request.request_id:
        raise Failure(PROTOCOL, f"the agent answered a {type(request).__name__} with {type(reply).__name__}")
    return reply


def tell(connection: Connection, message: msgspec.Struct) -> Flow[None]:
    """Send what is not answered.

    Raises Failure.
    """
    yield Send(connection, encode_frame(message))
