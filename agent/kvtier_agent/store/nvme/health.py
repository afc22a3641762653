"""What a device may be used for, and when to try it again. Pure: time is an argument."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..errors import DeviceError

_BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
_READ_ERRORS: Final = 3
"""So many reads that fail in a row are not a bad spot."""
_GONE: Final = (errno.ENODEV, errno.ENXIO, errno.ENOENT, errno.EBADF, errno.ESTALE, errno.ENOTCONN, errno.EBUSY)
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DeviceState(StrEnum):
    """How a device is used."""

    OPENING = "opening"
    READY = "ready"
    FULL = "full"
    """No new units, by the file system's word; all else goes on."""
    READ_ONLY = "read_only"
    SLOW = "slow"
    """A request did not come back in time: a miss and no write until it answers again."""
    GONE = "gone"
    """It is not there, or no more."""
    FAILED = "failed"
    REFUSED = "refused"
    """It is not ours, or not the one that was here."""


class Retry(StrEnum):
    """What to try a device again with."""

    PROBE = "probe"
    """A small read and write through the mover that is there."""
    REOPEN = "reopen"
    """A new mover, which opens it anew."""
    ROOM = "room"
    """Allocate again."""


@dataclass(frozen=True)
class Limits:
    """How patient the store is with a device, in seconds."""

    late_s: float = 5.0
    """Requests in flight, and none came back for so long: the device is slow."""
    hung_s: float = 30.0
    """As long as this: its mover is killed, so that its slots can come back."""
    open_s: float = 15.0
    """How long a store's start waits for a device to open."""
    probe_s: float = 1.0
    """A probe that takes longer is not an answer."""


class Health:
    """One device's state. Not thread-safe."""

    def __init__(self) -> None:
        self.state = DeviceState.OPENING
        self.error = ""
        """What is wrong, and what will be done; "" while nothing is."""
        self._retry_at = 0.0
        self._attempts = 0
        self._read_errors = 0

    @property
    def readable(self) -> bool:
        """Whether reads are worth a try."""
        return self.state in (DeviceState.READY, DeviceState.FULL, DeviceState.READ_ONLY)

    @property
    def writable(self) -> bool:
        """Whether runs may be written to units that it has."""
        return self.state in (DeviceState.READY, DeviceState.FULL)

    @property
    def has_room(self) -> bool:
        """Whether it may be asked for a unit."""
        return self.state is DeviceState.READY

    def opened(self, *, writable: bool, now: float) -> None:
        """It is there, and ours."""
        self._read_errors = 0
        if writable:
            self.recovered()
        else:
            self._enter(DeviceState.READ_ONLY, "opened read-only; make it writable", now)

    def refused(self, message: str, now: float) -> None:
        """It is there, and not ours."""
        self._enter(DeviceState.REFUSED, message, now)

    def late(self, message: str, now: float) -> None:
        """Requests do not come back."""
        if self.readable:
            self._enter(DeviceState.SLOW, message, now)

    def open_failed(self, message: str, now: float, number: int = 0) -> None:
        """It could not be opened."""
        self._enter(_lost(number), message, now)

    def gone(self, message: str, now: float) -> None:
        """It is not there, by the word of whoever would hand it over."""
        self._enter(DeviceState.GONE, message, now)

    def read_failed(self, number: int, message: str, now: float) -> None:
        """A read was refused whole."""
        self._read_errors += 1
        if self.readable and (number in _GONE or self._read_errors >= _READ_ERRORS):
            self._enter(_lost(number), message, now)

    def read_succeeded(self) -> None:
        """A read came back."""
        self._read_errors = 0

    def write_failed(self, number: int, message: str, now: float) -> None:
        """A write or flush was refused."""
        if number in FULL:
            if self.state is DeviceState.READY:
                self._enter(DeviceState.FULL, message, now)
        elif number in _GONE:
            self._enter(_lost(number), message, now)
        elif self.readable:
            self._enter(DeviceState.READ_ONLY, message, now)

    def recovered(self) -> None:
        """It answers again."""
        self.state, self.error, self._attempts = DeviceState.READY, "", 0

    def probe_failed(self, number: int, message: str, now: float) -> None:
        """The device refused a probe."""
        if number in _GONE or self.state is DeviceState.SLOW:
            self._enter(_lost(number), message, now)
        else:
            self.error = message

    def still_bad(self, message: str) -> None:
        """The last try failed; the next one is further off."""
        self.error = message

    def due(self, now: float) -> Retry | None:
        """What to try now; the outcome is told, or the next try comes later."""
        if self.state in (DeviceState.READY, DeviceState.OPENING) or now < self._retry_at:
            return None
        self._wait(now)
        if self.state is DeviceState.FULL:
            return Retry.ROOM
        return Retry.PROBE if self.state in (DeviceState.SLOW, DeviceState.READ_ONLY) else Retry.REOPEN

    def _enter(self, state: DeviceState, message: str, now: float) -> None:
        if state is not self.state:
            self._attempts = 0
        self.state = state
        self.error = message
        self._wait(now)

    def _wait(self, now: float) -> None:
        self._retry_at = now + _BACKOFF_S[min(self._attempts, len(_BACKOFF_S) - 1)]
        self._attempts += 1


def is_gone(error: Exception) -> bool:
    """Whether the error says that the device is not there."""
    return isinstance(error, DeviceError) and error.errno in _GONE


def _lost(number: int) -> DeviceState:
    return DeviceState.GONE if number in _GONE else DeviceState.FAILED
