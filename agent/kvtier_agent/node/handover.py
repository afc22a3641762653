"""Raw block devices on their way to the store: looked at, opened, and looked at again while they cannot be.

What blocks runs in threads, for as long as RawDevices lets it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvtier_crds.models import NvmeDevice

from kvtier_agent.link import DeviceAbsent
from kvtier_agent.node.preflight import raw_problem
from kvtier_agent.node.raw_devices import RawDevices

RETRY_S: Final = 5.0


@dataclass(frozen=True)
class OpenDevice:
    """A device for the store. Whoever takes it from the outbox closes `fd`."""

    name: str
    fd: int


class Handover:
    """For one store: each offered device once, or why not. Event loop only."""

    def __init__(self, node: str, raw_devices: RawDevices, held: Iterable[str]) -> None:
        """`held`: what the store has already, by name."""
        self._node, self._raw_devices = node, raw_devices
        self._offered: dict[str, NvmeDevice] = {}
        self._told: dict[str, str] = {}
        self._news = asyncio.Event()
        self.held = set(held)
        """By name, what the store has."""

    def offer(self, devices: Iterable[NvmeDevice]) -> None:
        """These are the raw devices of the class from now on."""
        self._offered = {device.name: device for device in devices}
        self._news.set()

    def want(self, name: str) -> None:
        """The store has this one no more."""
        self.held.discard(name)
        self._told.pop(name, None)
        self._news.set()

    async def run(self, put: Callable[[OpenDevice | DeviceAbsent], None]) -> None:
        """Hand over whatever can be, until cancelled."""
        while True:
            self._news.clear()
            for name, device in list(self._offered.items()):
                if name not in self.held:
                    await self._try(device, put)
            try:
                async with asyncio.timeout(RETRY_S if self._offered.keys() - self.held else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _try(self, device: NvmeDevice, put: Callable[[OpenDevice | DeviceAbsent], None]) -> None:
        opening = asyncio.get_running_loop().run_in_executor(None, self._open, device)
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_drop)  # the thread goes on, and what it opens must not stay claimed
            raise
        if isinstance(opened, int):
            self.held.add(device.name)
            self._told.pop(device.name, None)
            put(OpenDevice(device.name, opened))
        elif self._told.get(device.name) != opened:
            self._told[device.name] = opened
            put(DeviceAbsent(device.name, opened))

    def _open(self, device: NvmeDevice) -> int | str:
        """A descriptor, or why there is none. Blocks."""
        assert device.device is not None
        try:
            problem = raw_problem(self._node, device, self._raw_devices.look_at(device.device))
            return problem[1] if problem else self._raw_devices.open(device.device)
        except OSError as error:
            return f"{device.device} on node {self._node}: {error.strerror}; see dmesg there"


def _drop(opening: asyncio.Future[int | str]) -> None:
    if not opening.cancelled() and opening.exception() is None and isinstance(opened := opening.result(), int):
        os.close(opened)
