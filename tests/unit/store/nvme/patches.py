"""Ways to stand before a device's jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kvtier_agent.store.nvme.devices import Device


async def let_pass(_: int) -> None:
    """Nothing: the jobs are only noted."""


def before(
    monkeypatch: pytest.MonkeyPatch, kinds: Any, do: Callable[[int], Awaitable[None]], device: str | None = None
) -> list[Any]:
    """Have each job of the kinds wait for `do`, called with its number, which may raise; those that came so far.

    `device`: for this one only.
    """
    run, came = Device.run, list[Any]()

    async def run_then(self: Device, job: Any, *args: Any) -> Any:
        if isinstance(job, kinds) and device in (None, self.name):
            came.append(job)
            await do(len(came))
        return await run(self, job, *args)

    monkeypatch.setattr(Device, "run", run_then)
    return came
