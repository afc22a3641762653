"""Copies of pages, with the GIL released, and by several threads where that is faster."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final

from .failures import LOCAL, Failure

PIECE_BYTES: Final = 1 << 20
"""What one thread takes at a time: long enough for the copy to outweigh the call, short enough to end together."""
PARALLEL_BYTES: Final = 4 << 20
"""Less is copied by the calling thread alone: to wake another takes as long as to copy half a MiB."""
MAX_HELPERS: Final = 3
"""A few cores take all of a machine's memory bandwidth, and the engine wants the others."""

TRY_OTHER_EVERY: Final = 16
NEWEST_WEIGHS: Final = 0.3

Move = tuple[int, int, int]
"""Target address, source address, bytes."""


class Copies:
    """Moves that are due, between memory that `owners` keep alive. Any number of threads may run them together."""

    def __init__(self, moves: Iterable[Move], owners: Any) -> None:
        self._owners = owners
        self._due = deque(_pieces(moves))
        self.bytes = sum(size for _, _, size in self._due)
        self._stopped = False

    def run(self) -> None:
        """Take moves until none is left. Returns when this thread's last one is done."""
        move, take = ctypes.memmove, self._due.popleft
        while not self._stopped:
            try:
                target, source, size = take()
            except IndexError:
                return
            move(target, source, size)

    def stop(self) -> None:
        """Have every thread return after the move that it is at."""
        self._stopped = True


def _pieces(moves: Iterable[Move]) -> Iterable[Move]:
    for target, source, size in moves:
        if size <= PIECE_BYTES:
            yield target, source, size
            continue
        for at in range(0, size, PIECE_BYTES):
            yield target + at, source + at, min(PIECE_BYTES, size - at)


class Pace:
    """Whether helpers make copies faster, as measured: they do on idle cores, and do not where others need these.

    Not thread-safe, and need not be: a lost measurement does no harm.
    """

    def __init__(self) -> None:
        self._rates: dict[bool, float] = {}
        self._choices = 0

    def with_helpers(self) -> bool:
        """What was faster lately; each a first time, and the other one now and then."""
        if len(self._rates) < 2:
            return True not in self._rates
        self._choices += 1
        faster = self._rates[True] >= self._rates[False]
        return faster if self._choices % TRY_OTHER_EVERY else not faster

    def took(self, helped: bool, copied_bytes: int, seconds: float) -> None:
        """Count one measurement."""
        rate = copied_bytes / max(seconds, 1e-9)
        before = self._rates.get(helped, rate)
        self._rates[helped] = before + (rate - before) * NEWEST_WEIGHS


class Copier:
    """The threads that help with one client's copies, started when first needed. Thread-safe."""

    def __init__(self, helpers: int | None = None) -> None:
        """`helpers` is by default one less than the cores that this process may use, at most MAX_HELPERS."""
        cores = len(os.sched_getaffinity(0))
        self.helpers = min(MAX_HELPERS, cores - 1) if helpers is None else helpers
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._pace = Pace()

    def copy(self, copies: Copies) -> None:
        """Carry out all of them.

        Raises Failure when no thread can be had.
        """
        if copies.bytes < PARALLEL_BYTES or not self.helpers:
            copies.run()
            return
        began = time.perf_counter()
        helped = self._pace.with_helpers()
        helping = self.help(copies) if helped else []
        try:
            copies.run()
        except BaseException:
            copies.stop()
            raise
        finally:
            # One that got no thread is taken back, and never notified: waiting for it would wait for a thread, and
            # every thread may be here.
            wait([future for future in helping if not future.cancel()])
        self._pace.took(helped, copies.bytes, time.perf_counter() - began)

    def help(self, copies: Copies) -> list[Future[None]]:
        """Have every helper take part in the copies; the caller waits for what this returns."""
        return [self.start(copies.run) for _ in range(self.helpers)]

    def start(self, work: Callable[[], None]) -> Future[None]:
        """Have it done in a thread.

        Raises Failure when none can be had.
        """
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.helpers + 1, "kvtier-copy")
            try:
                return self._threads.submit(work)
            except RuntimeError as error:
                raise Failure(LOCAL, f"a thread for copies: {error}") from error

    def close(self) -> None:
        """Let the threads end when they are done. May be repeated; a later copy starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
