"""Mover processes that the system does not let us start at once."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.store import jobs, movers
from kvtier_agent.store.errors import MoverDied
from kvtier_agent.store.movers import COPY, Movers, Priority

WAIT_S = 60.0


class _Popen:
    """Starts processes, but not the first `refused` ones."""

    def __init__(self, refused: int) -> None:
        self.refused = refused

    def __call__(self, *args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if self.refused:
            self.refused -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return _really(*args, **kwargs)


_really = subprocess.Popen


def drop(made: Movers) -> asyncio.Future[Any]:
    """A job that has nothing to do."""
    job = jobs.DropChunk(made.next_id(), "pool-1", 1)
    return asyncio.ensure_future(asyncio.wait_for(made.run(job, Priority.ROOM), WAIT_S))


@pytest.mark.parametrize("at_start", [True, False], ids=["the-first", "its-successor"])
async def test_mover_that_cannot_be_started_now_is_started_later(
    arena: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, at_start: bool
) -> None:
    (arena / "movers").mkdir()
    made = Movers(COPY, 1, arena)
    if at_start:
        monkeypatch.setattr(movers.subprocess, "Popen", _Popen(2))
    made.start()
    await drop(made)
    if not at_start:
        (pid,) = made.pids()
        os.kill(pid, signal.SIGSTOP)
        orphan = drop(made)
        await asyncio.sleep(0)
        monkeypatch.setattr(movers.subprocess, "Popen", _Popen(2))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(MoverDied):
            await orphan
        await drop(made)
    await made.close()
    assert capfd.readouterr().err.count("event=mover.not_started") == 2
