"""What goes on when a part of kvtier-node fails."""

from __future__ import annotations

import asyncio
import logging

import pytest
from kvtier_agent.node import service


async def test_work_that_fails_is_run_again_and_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "RESTART_PAUSES_S", (0.0,))
    runs = 0
    third = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError("a quantity that nobody can read")
        third.set()
        await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR):
        running = asyncio.create_task(service.persist(work))
        async with asyncio.timeout(10):
            await third.wait()
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
