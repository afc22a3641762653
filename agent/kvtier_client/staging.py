"""Staging: memory of the client's own, from which the agent copies what puts store.

Each is a memfd sealed against resizing, so that the agent can map it without fear of SIGBUS; it is charged to
the client's pod, which touched it first. Puts and callers lease parts of it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections import deque
from concurrent.futures import Future
from typing import Final

from .failures import BUSY, CLIENT_CLOSED, LOCAL, Failure
from .memory import address_of

ALIGNMENT: Final = 4096
"""Slots begin at such offsets, and some processors copy three times faster when both ends agree modulo this."""


def aligned(size: int) -> int:
    """The bytes that a page of `size` bytes takes in staging."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Staging:
    """A sealed memfd and its writable mapping."""

    def __init__(self, size: int) -> None:
        """Make one of `size` bytes; memory is used as it is filled.

        Raises Failure when this process cannot have it.
        """
        self.size = size
        try:
            self.descriptor = os.memfd_create("kvtier-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.descriptor, size)
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                self.bytes = memoryview(mmap.mmap(self.descriptor, size, flags=mmap.MAP_SHARED))
            except BaseException:
                os.close(self.descriptor)
                raise
        except OSError as error:
            raise Failure(LOCAL, f"making {size} bytes of staging: {error.strerror or error}") from error
        self.address = address_of(self.bytes)
        self.retired = False
        """Nothing more may be written here but by who has a lease already."""
        self._free = [(0, size)]

    def take(self, size: int) -> int | None:
        """The offset of `size` free bytes, lowest first: what was used lately is warm and charged already."""
        for index, (offset, length) in enumerate(self._free):
            if length >= size:
                rest = [(offset + size, length - size)] if length > size else []
                self._free[index : index + 1] = rest
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """The bytes are free again."""
        merged: list[tuple[int, int]] = []
        for begin, length in sorted([*self._free, (offset, size)]):
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((begin, length))
        self._free = merged

    @property
    def unused(self) -> bool:
        """Whether nobody has a part of it."""
        return self._free == [(0, self.size)]

    def close(self) -> None:
        """Give the memory up, once no view refers to it; the agent's mapping stays good. May be repeated."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.bytes = memoryview(b"")


class Lease:
    """A part of a staging that one put, or one caller, has to itself."""

    def __init__(self, owner: StagingPool, staging: Staging, offset: int, size: int) -> None:
        self.staging = staging
        self.offset = offset
        self.size = size
        self._owner: StagingPool | None = owner

    @property
    def view(self) -> memoryview:
        """Its bytes, writable."""
        return self.staging.bytes[self.offset : self.offset + self.size]

    def free(self) -> None:
        """Give it back. May be repeated; any thread may do it."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.free(self)


class StagingPool:
    """One client's staging: at most `capacity` bytes, and as much again while a put that failed is still leased from.

    Thread-safe. Leases are given in the order in which they were asked for, so that a large one is not starved.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity - capacity % ALIGNMENT
        self._lock = threading.Lock()
        self._current: Staging | None = None
        self._retired: list[Staging] = []
        self._waiting: deque[tuple[int, Future[Lease]]] = deque()
        self._closed = False

    def lease(self, size: int) -> Future[Lease]:
        """Some `size` bytes, at most `capacity`, as soon as they are free.

        Its exception is a Failure when the process cannot have the memory, or the pool is closed.
        """
        future: Future[Lease] = Future()
        with self._lock:
            self._waiting.append((aligned(size), future))
            self._serve()
        return future

    def try_lease(self, size: int, staging: Staging) -> Lease | None:
        """Some `size` bytes of that staging, if they are free and nobody waits."""
        with self._lock:
            if self._waiting or self._closed or staging.retired:
                return None
            offset = staging.take(aligned(size))
            return None if offset is None else Lease(self, staging, offset, aligned(size))

    def give_up(self, future: Future[Lease]) -> Failure:
        """The caller waits no more: the failure to answer with. A lease that came meanwhile goes on."""
        if not future.cancel() and not future.exception():
            future.result().free()
        return Failure(BUSY, "other puts had the staging until the deadline")

    def free(self, lease: Lease) -> None:
        """Called by a lease, once."""
        with self._lock:
            lease.staging.give(lease.offset, lease.size)
            self._close_unused()
            self._serve()

    def retire(self, staging: Staging) -> None:
        """The agent may still copy from this staging: never lease from it again. May be repeated."""
        with self._lock:
            if staging.retired:
                return
            staging.retired = True
            self._retired.append(staging)
            if self._current is staging:
                self._current = None
            self._close_unused()
            self._serve()

    def close(self) -> None:
        """Give the memory up as soon as no lease is left. May be repeated."""
        with self._lock:
            self._closed = True
            if self._current is not None:
                self._current.retired = True
                self._retired.append(self._current)
                self._current = None
            self._close_unused()
            self._serve()

    def abandon(self) -> None:
        """Close this process's copies, after a fork."""
        for staging in [self._current, *self._retired]:
            if staging is not None:
                staging.close()

    def _close_unused(self) -> None:
        for staging in [staging for staging in self._retired if staging.unused]:
            self._retired.remove(staging)
            staging.close()

    def _serve(self) -> None:
        """Give leases to those who wait, in order, as far as memory is free."""
        while self._waiting:
            size, future = self._waiting[0]
            try:
                lease = self._take(size)
            except Failure as failure:
                self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(failure)
                continue
            if lease is None:
                if not future.cancelled():
                    return
                self._waiting.popleft()
                continue
            self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(lease)
            else:
                lease.staging.give(lease.offset, lease.size)

    def _take(self, size: int) -> Lease | None:
        if self._closed:
            raise Failure(CLIENT_CLOSED, "the client is closed")
        if self._current is None:
            self._current = Staging(self.capacity)
        offset = self._current.take(size)
        return None if offset is None else Lease(self, self._current, offset, size)
