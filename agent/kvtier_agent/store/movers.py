"""The mover processes, as the index process sees them: start, hand out jobs, replace the dead.

Jobs wait here by priority, and a mover has only a few at a time: an urgent job never stands behind a long row of
others, and what was not handed out can be withdrawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from . import jobs
from .aio import Tasks
from .channel import Channel
from .errors import DeviceError, FormatRefused, JobFailed, MoverDied
from .log import log

_BACKOFF_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_STEADY_S: Final = 30.0
"""A mover that lived this long starts the next back-off anew."""


class Priority(IntEnum):
    """Who goes first."""

    ROOM = 1
    COPY = 2
    DELETE = 3
    TOUCH = 4
    SCAN = 5


OnPart = Callable[[Any], None]


class _Pending(NamedTuple):
    job: jobs.AnyJob
    fd: int | None
    parts: list[Any]
    on_part: OnPart
    future: asyncio.Future[list[Any]]


class _Mover:
    """One mover process and its jobs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Channel[Any] | None = None
        self.ready = False
        self.under_way: dict[int, _Pending] = {}
        self.orphans: list[_Pending] = []
        self.attempts = 0
        """Starts since it last was steady, the first not counted."""
        self.started = 0.0


class Kind(NamedTuple):
    """A kind of mover processes."""

    name: str
    """Of their lock files: `movers/NAME-NUMBER.lock` in the arena."""
    module: str
    """Run as a process (`moverproc.run_mover`)."""
    replies: Any
    """Union of the messages that come from them, `jobs.Ready` and `jobs.Failed` among them."""
    at_once: int = 1
    """Jobs that one process has at most."""
    arguments: tuple[str, ...] = ()


COPY: Final = Kind("copy", "kvtier_agent.store.mover", jobs.FromMover, at_once=2)
"""A second job lies ready, so that none waits for the index process."""


class Movers:
    """The movers of one kind. Event loop thread only."""

    def __init__(self, kind: Kind, count: int, arena: Path) -> None:
        self._kind, self._arena = kind, arena
        self._movers = [_Mover(number) for number in range(count)]
        self._queue: list[tuple[int, int, _Pending]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._tasks = Tasks()
        self._closing = False

    def next_id(self) -> int:
        """For a new job."""
        return next(self._ids)

    def pids(self) -> list[int]:
        """Of the mover processes that run."""
        return [it.process.pid for it in self._movers if it.process is not None and it.process.poll() is None]

    def start(self) -> None:
        """Start the processes; jobs may be submitted at once."""
        for mover in self._movers:
            if not self._spawn(mover):
                self._tasks.start(f"mover {mover.number}", self._spawn_later(mover))

    async def run(
        self,
        job: jobs.AnyJob,
        priority: int,
        *,
        fd: int | None = None,
        start_by: float = math.inf,
        on_part: OnPart | None = None,
    ) -> Sequence[Any]:
        """Have the job done, and return the parts of its result; `fd` is duplicated.

        With `on_part` it is called with every part but the last as they come, and only the last is returned. A job that
        was not handed out by `start_by` (the loop's time) is withdrawn; one that was goes on whatever becomes of the
        caller. Raises MoverDied, DeviceError, FormatRefused, JobFailed.
        """
        loop = asyncio.get_running_loop()
        parts: list[Any] = []
        pending = _Pending(
            job, None if fd is None else os.dup(fd), parts, on_part or parts.append, loop.create_future()
        )
        heapq.heappush(self._queue, (priority, next(self._order), pending))
        self._hand_out()
        timer = loop.call_at(start_by, self._withdraw, pending) if start_by < math.inf else None
        try:
            await asyncio.shield(pending.future)
        finally:
            if timer is not None:
                timer.cancel()
        failed = parts[-1]
        if isinstance(failed, jobs.Failed):
            if failed.refused:
                raise _Refused(failed.message)
            raise DeviceError(failed.errno, failed.message) if failed.errno else JobFailed(failed.message)
        return parts

    def forget_chunk(self, pool_uid: str, chunk_id: int) -> None:
        """Have every mover unmap a chunk that is gone."""
        for mover in self._movers:
            if mover.channel is not None:
                mover.channel.send(jobs.ForgetChunk(pool_uid, chunk_id))

    async def close(self) -> None:
        """End the processes. Jobs that are not done fail."""
        self._closing = True
        for mover in self._movers:
            if mover.process is not None:
                mover.process.kill()
            if mover.channel is not None:
                mover.channel.close("closing")
        for _, _, pending in self._queue:
            _fail(pending, MoverDied(-1))
        self._queue.clear()
        await self._tasks.cancel()
        for mover in self._movers:
            self._release_orphans(mover)
            if mover.process is not None:
                await _reap(mover.process, 2.0)

    def _spawn(self, mover: _Mover) -> bool:
        """Whether its process was started; the log says why not: there may be no process, descriptor or memory now."""
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                command = [sys.executable, "-m", self._kind.module]
                command += ["--fd", str(theirs.fileno()), "--lock", f"{self._kind.name}-{mover.number}.lock"]
                command += ["--arena", str(self._arena), "--parent", str(os.getpid()), *self._kind.arguments]
                with theirs:
                    mover.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
                mover.channel = Channel(
                    ours,
                    self._kind.replies,
                    lambda message: self._received(mover, message),
                    lambda reason: self._died(mover, reason),
                    out_limit=256 << 20,
                )
            except Exception as error:  # whatever it is: jobs wait for this mover
                log("mover.not_started", kind=self._kind.name, number=mover.number, error=repr(error))
                return False
            undo.pop_all()
        mover.started = asyncio.get_running_loop().time()
        return True

    async def _spawn_later(self, mover: _Mover) -> None:
        """Start its process after its back-off, as often as it takes: its orphans wait for that."""
        while True:
            await asyncio.sleep(_backoff_s(mover))
            mover.attempts += 1
            if self._spawn(mover):
                return

    def _withdraw(self, pending: _Pending) -> None:
        for entry in self._queue:
            if entry[2] is pending:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
                if pending.fd is not None:
                    os.close(pending.fd)
                _fail(pending, JobFailed("every mover was busy until the deadline"))
                return

    def _hand_out(self) -> None:
        while self._queue:
            mover = min(
                (it for it in self._movers if it.ready and len(it.under_way) < self._kind.at_once),
                key=lambda it: len(it.under_way),
                default=None,
            )
            if mover is None:
                return
            _, _, pending = heapq.heappop(self._queue)
            mover.under_way[pending.job.id] = pending
            assert mover.channel is not None
            assert isinstance(pending.job, msgspec.Struct)
            mover.channel.send(pending.job, () if pending.fd is None else (pending.fd,))

    def _received(self, mover: _Mover, message: Any) -> None:
        if isinstance(message, jobs.Ready):
            mover.ready = True
            self._release_orphans(mover)
        elif message.more:
            mover.under_way[message.id].on_part(message)
        else:
            pending = mover.under_way.pop(message.id)
            pending.parts.append(message)
            if not pending.future.done():
                pending.future.set_result(pending.parts)
        self._hand_out()

    def _died(self, mover: _Mover, reason: str) -> None:
        """The jobs fail only once the successor has the lock: until then their I/O may still be in flight."""
        mover.ready, mover.channel = False, None
        mover.orphans += mover.under_way.values()
        mover.under_way.clear()
        if self._closing:
            self._release_orphans(mover)
        else:
            self._tasks.start(f"mover {mover.number}", self._replace(mover, reason))

    async def _replace(self, mover: _Mover, reason: str) -> None:
        process = mover.process
        assert process is not None
        process.kill()
        code = await _reap(process, 1.0)
        if asyncio.get_running_loop().time() - mover.started > _STEADY_S:
            mover.attempts = 0
        log(
            "mover.died",
            kind=self._kind.name,
            number=mover.number,
            code=code,
            reason=reason,
            orphans=len(mover.orphans),
            restart_s=_backoff_s(mover),
        )
        await self._spawn_later(mover)

    def _release_orphans(self, mover: _Mover) -> None:
        for pending in mover.orphans:
            _fail(pending, MoverDied(mover.number))
        mover.orphans.clear()


class _Refused(FormatRefused, JobFailed):
    """A mover met another format; its message says what and where."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)


def _backoff_s(mover: _Mover) -> float:
    return _BACKOFF_S[min(mover.attempts, len(_BACKOFF_S) - 1)]


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.future.done():
        pending.future.set_exception(error)
        pending.future.exception()  # the waiter may be gone


async def _reap(process: subprocess.Popen[bytes], wait_s: float) -> int | None:
    """The exit code; None: the process hangs in the kernel and is left to init."""
    for _ in range(max(1, int(wait_s / 0.02))):
        if process.poll() is not None:
            return process.returncode
        await asyncio.sleep(0.02)
    return process.poll()
