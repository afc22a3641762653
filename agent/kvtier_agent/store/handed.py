"""Raw devices on their way from kvtier-node to the nvme tier.

They may come before the tier is there, and again after a device was gone. Event loop thread only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol


class Taker(Protocol):
    """A device of the nvme tier."""

    def hand(self, fd: int) -> None:
        """The device is there. The descriptor stays its owner's: it is good until `give_up`."""

    def lacks(self, message: str) -> None:
        """kvtier-node cannot hand it over now, and keeps trying."""


class Handed:
    """The raw devices of one store, by name."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}
        self._messages: dict[str, str] = {}
        self._takers: dict[str, Taker] = {}
        self.want: Callable[[str], None] = lambda _name: None
        """Asks kvtier-node for a device anew."""

    def names(self) -> tuple[str, ...]:
        """Those that are here."""
        return tuple(self._fds)

    def arrived(self, name: str, fd: int) -> None:
        """A device came; `fd` is owned here from now on."""
        self._drop(name)
        self._fds[name] = fd
        self._messages.pop(name, None)
        if name in self._takers:
            self._takers[name].hand(fd)

    def lacks(self, name: str, message: str) -> None:
        """A device cannot come now. What is here already stays."""
        if name in self._fds:
            return
        self._messages[name] = message
        if name in self._takers:
            self._takers[name].lacks(message)

    def take(self, name: str, taker: Taker) -> None:
        """Tell `taker` of this device, now and later."""
        self._takers[name] = taker
        if name in self._fds:
            taker.hand(self._fds[name])
        elif name in self._messages:
            taker.lacks(self._messages[name])

    def give_up(self, name: str) -> None:
        """The descriptor is of no use any more: close it, and ask for another."""
        self._drop(name)
        self.want(name)

    def close(self) -> None:
        """Let go of all devices."""
        for name in list(self._fds):
            self._drop(name)

    def _drop(self, name: str) -> None:
        fd = self._fds.pop(name, None)
        if fd is not None:
            os.close(fd)
