"""Carries flows out in an event loop: sockets are awaited, and only large copies go to threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from ..connection import Connection
from ..copying import Copier, Copies
from ..failures import Deadline
from ..flows import Copy, Flow, Pause, Receive, Run, Send, Step
from ..protocol.messages import ToClient

INLINE_BYTES: Final = 256 << 10
"""Copied at once by the event loop's thread: in less time than it takes to wake another."""

Result = TypeVar("Result")


async def drive(flow: Flow[Result], deadline: Deadline, copier: Copier) -> Result:
    """The flow's result.

    Raises what the flow raises: Failure. Cancelled, it returns when no thread copies any more.
    """
    try:
        step = next(flow)
        while True:
            try:
                outcome = await _carry_out(step, deadline, copier)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


async def _carry_out(step: Step, deadline: Deadline, copier: Copier) -> ToClient | None:
    match step:
        case Receive(connection):
            return await _receive(connection, deadline)
        case Send(connection, frame, descriptors):
            await _send(connection, frame, descriptors, deadline)
        case Copy(copies, parallel):
            await _copy(copies, parallel, copier)
        case Run(work):
            await _finished(copier.start(work))
        case Pause(seconds):
            await asyncio.sleep(min(seconds, deadline.remaining()))
    return None


async def _receive(connection: Connection, deadline: Deadline) -> ToClient:
    loop = asyncio.get_running_loop()
    message = connection.received()
    while message is None:
        await _ready(connection, loop.add_reader, loop.remove_reader, deadline)
        message = connection.receive_now()
    return message


async def _send(connection: Connection, frame: bytes, descriptors: tuple[int, ...], deadline: Deadline) -> None:
    loop = asyncio.get_running_loop()
    rest = memoryview(frame)
    while True:
        sent = connection.send_now(rest, descriptors)
        rest = rest[sent:]
        if not rest:
            return
        if sent:
            descriptors = ()
        await _ready(connection, loop.add_writer, loop.remove_writer, deadline)


async def _ready(
    connection: Connection, add: Callable[..., Any], remove: Callable[..., Any], deadline: Deadline
) -> None:
    """Until the socket is ready, or broken.

    Raises Failure past the deadline.
    """
    ready = asyncio.get_running_loop().create_future()
    add(connection.sock, _finish, ready)
    try:
        async with asyncio.timeout(deadline.remaining()):
            await ready
    except TimeoutError as error:
        raise deadline.passed() from error
    finally:
        remove(connection.sock)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _copy(copies: Copies, parallel: bool, copier: Copier) -> None:
    if copies.bytes <= INLINE_BYTES:
        copies.run()
        return
    # Within a thread of the copier its helpers are asked for as anywhere; those that get no thread are not waited for.
    await _finished(copier.start(partial(copier.copy, copies) if parallel else copies.run), copies.stop)


async def _finished(working: Future[None], stop: Callable[[], None] = lambda: None) -> None:
    """Until the thread is done. Cancelled, it stops it first, and waits: what it uses is the caller's after that."""
    done = asyncio.wrap_future(working)
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        stop()
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):  # once is enough
                await asyncio.wait([done])
        raise
