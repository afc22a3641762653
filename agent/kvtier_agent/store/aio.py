"""Small helpers for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from .log import log


async def let_others() -> None:
    """End a step that may have taken most of a millisecond: requests that came meanwhile go first."""
    await asyncio.sleep(0)


@contextmanager
def going_on(step: str) -> Iterator[None]:
    """What one step of upkeep raises is logged: the other steps, and the next round, go on."""
    try:
        yield
    except Exception as error:
        log("upkeep.failed", step=step, error=repr(error))


class Signal:
    """Something changed. Waiters look again; a signal without waiters is forgotten."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake all who wait now."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, deadline: float) -> bool:
        """Whether the signal fired before `deadline` (the loop's time)."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, max(0.0, deadline - loop.time()))
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class Tasks:
    """Background tasks, kept until they end; what escapes one is logged with its name."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` on its own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log("task.failed", task=task.get_name(), error=repr(error))

    async def cancel(self) -> None:
        """Cancel all and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
