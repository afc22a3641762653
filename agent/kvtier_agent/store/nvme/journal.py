"""The devices' record logs, written: deletions, expiry and purges, durable before they are acknowledged.

Every device gets every record, so that what was deleted stays so although a device is away meanwhile; one that could
not take a record, or was not read yet, gets it before it is used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ..aio import Tasks
from ..arena_format import PAGE
from ..errors import DeviceError, FormatRefused, JobFailed
from ..log import log
from . import jobs
from .devices import Device, Priority
from .records import Deleted, Log, Purged, Record, compact, encode_half_header, encode_record

_WRITE_BYTES: Final = 1 << 20
_FIRST_S: Final = 60.0
"""How long the first device to have a record is waited for."""
_OTHERS_S: Final = 5.0
"""Then the others, from the same moment on: one that hangs gets it when it is back."""


class Journal:
    """All devices' logs. Event loop thread only."""

    def __init__(self, devices: Sequence[Device], oldest: Callable[[], dict[str, int]], tasks: Tasks) -> None:
        """`oldest`: by pool, the lowest serial that lies on any device; pools that have nothing there are left out."""
        self._devices, self._oldest, self._tasks = devices, oldest, tasks
        self.records: list[Record] = []
        """All that count, of all devices."""
        self._logs: dict[str, _DeviceLog] = {}
        self._counted: set[str] = set()
        """Devices of which the books know what lies there."""
        self._for_others: list[Record] = []
        """What the others have to take."""

    @property
    def is_whole(self) -> bool:
        """Whether it is known of every device what lies there."""
        return all(it.name in self._counted for it in self._devices)

    @property
    def is_settled(self) -> bool:
        """Whether every device was read, and has every record."""
        return self.is_whole and all(it.is_settled for it in self._logs.values())

    def has_purged(self, pool_uid: str) -> bool:
        """Whether a purge of the pool is recorded."""
        return any(isinstance(it, Purged) and it.pool == pool_uid for it in self.records)

    async def load(self, device: Device) -> list[Record]:
        """Read the device's log; what it says counts from now on. Raises JobFailed."""
        cut = device.superblock
        assert cut is not None
        parts: list[bytes] = []
        job = jobs.ReadArea(device.next_id(), cut.records_at, cut.records_bytes)
        last = await device.run(job, Priority.RECORD, lambda part: parts.append(part.data))
        found = Log(b"".join(parts) + last.data)
        fresh = self._logs[device.name] = _DeviceLog(device, found)
        fresh.missed = list(self._for_others)
        known = set(self.records)  # the device may be read again and again
        self.records += [it for it in (*found.records, *self._for_others) if it not in known]
        return found.records

    def unload(self, device: Device) -> None:
        """What else lies on the device could not be read."""
        self._logs.pop(device.name, None)

    def counted(self, device: Device) -> None:
        """The books know now what lies on the device, whose log was read before."""
        self._counted.add(device.name)
        if self.is_whole:
            self._for_others.clear()

    async def append(self, records: Sequence[Record]) -> None:
        """Make `records` durable. Raises DeviceError when no device took them: they hold only until a restart."""
        self.records += records
        if len(self.records) > _TIDY_AT:
            self._still_counting()
        if not self.is_whole:
            self._for_others = _merged([*self._for_others, *records])
        writing = {self._tasks.start("record", self._append_to(it, records)) for it in self._logs.values()}
        loop, taken = asyncio.get_running_loop(), False
        begun = loop.time()
        while writing and (left_s := begun + (_OTHERS_S if taken else _FIRST_S) - loop.time()) > 0:
            done, writing = await asyncio.wait(writing, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            taken = taken or any(it.result() for it in done)
        if not taken:
            raise DeviceError(0, "no device takes records now; what was removed may come back after a restart")

    def make_up(self, device: Device) -> None:
        """Begin to write what the device missed while it was away, unless it is at it. It is tried again."""
        mine = self._logs.get(device.name)
        if mine is not None and mine.missed and device.health.writable and not mine.is_busy:
            self._tasks.start("record", self._append_to(mine, []))

    async def _append_to(self, mine: _DeviceLog, records: Sequence[Record]) -> bool:
        """Whether the device has taken `records`, and with them all that it missed."""
        mine.missed = _merged([*mine.missed, *records])
        if not mine.device.health.writable:
            return False
        due, mine.missed = mine.missed, []
        try:
            await mine.append(due, self._still_counting)
        except (JobFailed, FormatRefused) as error:
            log("device.record_failed", device=mine.device.name, error=error)
            mine.missed = due + mine.missed
            return False
        return True

    def _still_counting(self) -> list[Record]:
        """What cannot be left out: a device that was not read may have anything."""
        oldest = self._oldest() if self.is_whole else _from_the_first(self.records)
        self.records = compact(self.records, oldest)
        return self.records


_TIDY_AT: Final = 10_000


class _DeviceLog:
    """One device's log."""

    def __init__(self, device: Device, found: Log) -> None:
        self.device = device
        self.missed: list[Record] = []
        self._half, self._epoch, self._end, self._counter = found.half, found.epoch, found.end, found.counter
        self._half_bytes = found.half_bytes
        self._lock = asyncio.Lock()
        self._waiting: list[Record] = []

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be written."""
        return not (self.missed or self._waiting or self.is_busy)

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._lock.locked()

    async def append(self, records: Sequence[Record], still_counting: Callable[[], list[Record]]) -> None:
        """Durable when it returns. Those who wait for a write under way share the next. Raises JobFailed."""
        self._waiting += records
        async with self._lock:
            mine, self._waiting = self._waiting, []
            if not mine:
                return  # another one's write took them along
            try:
                await self._write(mine, still_counting)
            except BaseException:
                self._waiting = mine + self._waiting
                raise

    async def _write(self, records: list[Record], still_counting: Callable[[], list[Record]]) -> None:
        data = self._encode(records, self._counter)
        if self._epoch == 0 or self._end + len(data) > self._half_bytes:
            await self._switch(still_counting())
            return
        await self._put(self._half, self._end, data)
        self._end += len(data)
        self._counter += len(records)

    async def _switch(self, records: list[Record]) -> None:
        """Write all that counts to the other half, then its header: from then on it is the log."""
        data = self._encode(records, self._counter)
        while PAGE + len(data) > self._half_bytes // 2:
            records = _coarser(records)
            data = self._encode(records, self._counter)
        half, epoch = 1 - self._half, self._epoch + 1
        await self._put(half, PAGE, data + bytes(PAGE))
        await self._put(half, 0, encode_half_header(epoch))
        self._half, self._epoch = half, epoch
        self._end = PAGE + len(data)
        self._counter += len(records)

    def _encode(self, records: Sequence[Record], counter: int) -> bytes:
        return b"".join(encode_record(record, counter + 1 + index) for index, record in enumerate(records))

    async def _put(self, half: int, offset: int, data: bytes) -> None:
        cut = self.device.superblock
        assert cut is not None
        at = cut.records_at + half * self._half_bytes + offset
        for start in range(0, len(data), _WRITE_BYTES):
            part = data[start : start + _WRITE_BYTES]
            await self.device.run(jobs.WriteArea(self.device.next_id(), at + start, part), Priority.RECORD)


def _merged(records: list[Record]) -> list[Record]:
    """The same in fewer records, where they are many."""
    return records if len(records) <= _TIDY_AT else compact(records, _from_the_first(records))


def _from_the_first(records: Sequence[Record]) -> dict[str, int]:
    """For `compact`: pages may lie somewhere from before any record."""
    return dict.fromkeys((it.pool for it in records), 0)


def _coarser(records: Sequence[Record]) -> list[Record]:
    """Shorter records that take away at least as much: the pool with the longest ones starts empty after a restart."""
    sizes: dict[str, int] = {}
    for it in records:
        sizes[it.pool] = sizes.get(it.pool, 0) + (len(it.prints) if isinstance(it, Deleted) else 0) + 1
    worst = max(sizes, key=lambda pool: sizes[pool])
    cutoff = max(it.cutoff for it in records if it.pool == worst)
    log("records.coarser", pool=worst, records=sum(it.pool == worst for it in records))
    return [*(it for it in records if it.pool != worst), Purged(worst, cutoff)]
