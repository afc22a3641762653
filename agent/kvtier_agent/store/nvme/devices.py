"""The devices of the NVMe tier as the index process sees them: their movers, their state, their units."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from kvtier_agent.config import DeviceConfig
from kvtier_agent.control import DeviceSnapshot

from ..aio import Signal, Tasks
from ..errors import DeviceError, FormatRefused, JobFailed
from ..handed import Handed
from ..jobs import Ready
from ..log import log
from ..movers import Kind, Movers
from . import jobs
from .device import Superblock
from .estimate import Estimator
from .health import DeviceState, Health, Limits, Retry
from .placement import Segment

DEPTH: Final = 8
"""Requests that a device has in flight."""
FOUND_MARK: Final = 1
"""Of what was written before the store started, and perhaps never flushed."""
BOUNCE_BYTES: Final = 16 << 20
"""Memory through which the cleaner moves pages."""


_COUNTERS: Final = ("reads", "read_bytes", "writes", "written_bytes", "errors", "late")


class Priority(IntEnum):
    """Who goes first on a device."""

    OPEN = -1
    READ = 0
    RECORD = 1
    SYNC = 2
    WRITE = 3
    CLEAN = 4
    STAGE = 5


class _DeviceMovers(Movers):
    """One device's mover; `on_ready` is called whenever a process begins, before it is given anything else."""

    def __init__(self, kind: Kind, arena: Path, on_ready: Callable[[], None]) -> None:
        super().__init__(kind, 1, arena)
        self._on_ready = on_ready

    def _received(self, mover: Any, message: Any) -> None:
        if isinstance(message, Ready):
            self._on_ready()
        super()._received(mover, message)

    def restart(self) -> None:
        """Kill the process; its jobs fail once its successor has its lock."""
        for mover in self._movers:
            if mover.process is not None:
                mover.process.kill()


class Device:
    """One device. Event loop thread only."""

    def __init__(
        self,
        config: DeviceConfig,
        capacity_bytes: int,
        arena: Path,
        bounce_fd: int,
        limits: Limits,
        handed: Handed | None = None,
    ) -> None:
        """`handed`: where a raw device comes from that another process opens; None: it is opened here."""
        self.name, self.path = config.name, Path(config.path)
        self._initialize, self._capacity = config.initialize, capacity_bytes
        self._bounce_fd, self.limits = bounce_fd, limits
        self._handed, self._started = handed, False
        self._handed_fd: int | None = None
        """Of the open device, where another process opened it for us; owned by `handed`."""
        kind = Kind(
            f"dev-{config.name}",
            "kvtier_agent.store.nvme.io_mover",
            jobs.FromMover,
            DEPTH + 1,
            ("--path", str(self.path)),
        )
        self._movers = _DeviceMovers(kind, arena, self._greet)
        self._tasks = Tasks()
        self.health = Health()
        self.note = ""
        """What there is to say of a device that is well."""
        self.estimate = Estimator()
        self.counters: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self.superblock: Superblock | None = None
        self.direct = False
        self.segments: dict[int, Segment] = {}
        """By unit."""
        self._free: list[int] = []
        self._opening: asyncio.Task[None] | None = None
        self._opening_until = 0.0
        """A mover that was begun is given until then, rather than begin another one."""
        self._in_flight: dict[bool, int] = {True: 0, False: 0}
        """Reads, and all else."""
        self._last_back: dict[bool, float] = {True: 0.0, False: 0.0}
        self._late_since = 0.0
        self.written_mark = FOUND_MARK
        """Runs written so far; what a start finds counts as one. `flushed_mark`: of these, flushed."""
        self.flushed_mark = 0
        self._flushing: asyncio.Task[bool] | None = None
        self.openings = Signal()
        """Fires when it was opened."""

    def start(self) -> None:
        """Start the mover; it opens the device, or waits until it is handed over."""
        if self._handed is not None:
            self._handed.take(self.name, self)
        else:
            self._movers.start()

    def hand(self, fd: int) -> None:
        """The open device: the mover begins, or begins anew, with it."""
        self._handed_fd = fd
        self._opening_until = self._now() + 2 * self.limits.open_s
        if self._started:
            self._movers.restart()
        else:
            self._started = True
            self._movers.start()

    def lacks(self, message: str) -> None:
        """It cannot be handed over now."""
        if self._handed_fd is None:
            self.health.gone(message, self._now())

    def snapshot(self, used_bytes: int) -> DeviceSnapshot:
        """Its state now."""
        health = self.health
        return DeviceSnapshot(
            self.name,
            health.state.value,
            health.error or self.note,
            self.direct,
            self.units * self.unit_bytes,
            used_bytes,
            dict(self.counters),
        )

    async def opened(self) -> bool:
        """Whether the device was opened, waiting for at most `limits.open_s`."""
        deadline = asyncio.get_running_loop().time() + self.limits.open_s
        while self.health.state is DeviceState.OPENING and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        if self.health.state is DeviceState.OPENING:
            self.health.open_failed("it did not open in time; looked for again in the background", self._now())
        return self.health.readable

    async def close(self) -> None:
        """End the mover. Jobs under way fail."""
        if self._opening is not None:
            self._opening.cancel()
        await self._tasks.cancel()
        await self._movers.close()

    @property
    def units(self) -> int:
        """Units that the device has."""
        return self.superblock.units if self.superblock is not None else 0

    @property
    def unit_bytes(self) -> int:
        """Of each of its units."""
        return self.superblock.unit_bytes if self.superblock is not None else 0

    @property
    def free_units(self) -> int:
        """Units that may be taken."""
        return len(self._free)

    def take_unit(self) -> int | None:
        """A free unit, the lowest."""
        return self._free.pop() if self._free else None

    def give_unit(self, unit: int) -> None:
        """The unit is free, durably."""
        self.segments.pop(unit, None)
        self._free.append(unit)

    def adopt(self, units: Sequence[int]) -> None:
        """These units are taken, all others free."""
        taken = set(units)
        self._free = [unit for unit in reversed(range(self.units)) if unit not in taken]

    def free_listed(self, units: Sequence[int]) -> None:
        """Count units as free that were not in use before (the device grew)."""
        self._free += units

    async def run(self, job: Any, priority: Priority, on_part: Callable[[Any], None] | None = None) -> Any:
        """Have the job done; its last result. What goes wrong is noted in the device's health.

        Raises MoverDied, DeviceError, FormatRefused, JobFailed.
        """
        reading = isinstance(job, jobs.Read | jobs.Lift | jobs.StageUnit | jobs.ReadArea | jobs.ListUnits)
        timed = not isinstance(job, jobs.StageUnit | jobs.ListUnits)  # these are long, and waited for otherwise
        now = self._now()
        if not self._in_flight[reading]:
            self._last_back[reading] = now
        self._in_flight[reading] += timed
        try:
            parts = await self._movers.run(job, priority, on_part=on_part)
        except DeviceError as error:
            self.counters["errors"] += 1
            self._failed(error, reading=reading)
            raise
        else:
            if reading:
                self.health.read_succeeded()
            return parts[-1]
        finally:
            self._in_flight[reading] -= timed
            self._last_back[reading] = self._now()

    def give_up(self) -> None:
        """A long job does not come back: begin anew."""
        log("device.hung", device=self.name, path=self.path)
        self._movers.restart()

    def wrote(self, size: int) -> None:
        """A run is written, and not yet flushed."""
        self.written_mark += 1
        self.counters["writes"] += 1
        self.counters["written_bytes"] += size

    def next_id(self) -> int:
        """For a new job."""
        return self._movers.next_id()

    def forget_chunk(self, pool_uid: str, chunk: int) -> None:
        """The chunk is gone."""
        self._movers.forget_chunk(pool_uid, chunk)

    async def flush(self, mark: int) -> bool:
        """Whether what was written up to `mark` is flushed. One flush serves all who wait when it begins."""
        while self.flushed_mark < mark:
            if self._flushing is None:
                self._flushing = asyncio.ensure_future(self._flush_once())
            if not await asyncio.shield(self._flushing):
                return False
        return True

    async def _flush_once(self) -> bool:
        target = self.written_mark
        try:
            await self.run(jobs.Sync(self.next_id()), Priority.SYNC)
        except (JobFailed, FormatRefused) as error:
            log("device.flush_failed", device=self.name, error=error)
            return False
        finally:
            self._flushing = None
        self.flushed_mark = max(self.flushed_mark, target)
        return True

    def tick(self, now: float) -> None:
        """Look for requests that are late, and try again what is due. Called every fraction of a second."""
        late = [
            kind for kind in (True, False) if self._in_flight[kind] and now - self._last_back[kind] > self.limits.late_s
        ]
        if late and self.health.readable:
            self._late_since = now
            self.counters["late"] += 1
            what = "a read" if True in late else "a write"
            self.health.late(
                f"{what} did not come back within {self.limits.late_s:g} s; tried again with back-off", now
            )
            log("device.slow", device=self.name, path=self.path, error=self.health.error)
        if late and self.health.state is DeviceState.SLOW and now - self._late_since > self.limits.hung_s:
            self._late_since = now
            self.give_up()
            return
        step = self.health.due(now)
        if step is Retry.REOPEN and now >= self._opening_until:
            self._reopen(now)
        elif step is Retry.ROOM:
            self.health.recovered()
        elif step is Retry.PROBE and not late:
            self._tasks.start("probe", self._probe())

    def _reopen(self, now: float) -> None:
        """Have a new mover open the device; one that was handed over has to be handed over again first."""
        self._opening_until = now + 2 * self.limits.open_s
        if self._handed is None:
            self._movers.restart()
        elif self._handed_fd is not None:
            self._handed_fd = None
            self._movers.restart()  # its descriptors go with it
            self._handed.give_up(self.name)

    async def _probe(self) -> None:
        write = self.health.state is DeviceState.READ_ONLY
        started = self._now()
        try:
            await self._movers.run(jobs.Probe(self.next_id(), write), Priority.OPEN)
        except (JobFailed, FormatRefused) as error:
            if self.health.state in (DeviceState.SLOW, DeviceState.READ_ONLY):
                number = error.errno if isinstance(error, DeviceError) else 0
                self.health.probe_failed(number, f"{error}; tried again with back-off", self._now())
            return
        took = self._now() - started
        if self.health.state in (DeviceState.SLOW, DeviceState.READ_ONLY):
            if took <= self.limits.probe_s:
                self.health.recovered()
                log("device.recovered", device=self.name, path=self.path)
            else:
                self.health.still_bad(f"a probe took {took:.1f} s; tried again with back-off")

    def _failed(self, error: DeviceError, *, reading: bool) -> None:
        before = self.health.state
        message = f"{error}; tried again with back-off, look at the device and the kernel's log"
        if reading:
            self.health.read_failed(error.errno, message, self._now())
        else:
            self.health.write_failed(error.errno, message, self._now())
        if self.health.state is not before:
            log("device.degraded", device=self.name, path=self.path, state=self.health.state.value, error=error)

    def _greet(self) -> None:
        """A mover began: give it what it needs, and have it open the device, before all else."""
        if self._opening is not None:
            self._opening.cancel()
        self._opening_until = self._now() + 2 * self.limits.open_s
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        """Look at the device. One that was in use before has to be the same."""
        if self._handed is not None and self._handed_fd is None:
            return
        jobs_first: list[tuple[Any, int | None]] = [(jobs.TakeBounce(self.next_id()), self._bounce_fd)]
        if self._handed_fd is not None:
            jobs_first.append((jobs.TakeDevice(self.next_id()), self._handed_fd))
        known = self.superblock.uuid if self.superblock is not None else b""
        try:
            for job, fd in jobs_first:
                await self._movers.run(job, Priority.OPEN, fd=fd)
            open_job = jobs.Open(self.next_id(), self._capacity, self._initialize, known, self.limits.open_s)
            (opened,) = await self._movers.run(open_job, Priority.OPEN)
        except FormatRefused as error:
            self._opening_until = 0.0
            self.health.refused(str(error), self._now())
            log("device.refused", device=self.name, path=self.path, error=error)
            return
        except JobFailed as error:
            self._opening_until = 0.0
            number = error.errno if isinstance(error, DeviceError) else 0
            self.health.open_failed(f"{error}; tried again with back-off", self._now(), number)
            log("device.open_failed", device=self.name, path=self.path, error=error)
            return
        assert isinstance(opened, jobs.Opened)
        self._opening_until = 0.0
        cut = (opened.unit_bytes, opened.units, opened.records_at, opened.records_bytes, opened.units_at)
        units_before = self.units
        self.superblock = Superblock(opened.uuid, *cut)
        self.direct = opened.direct
        self.health.opened(writable=opened.writable, now=self._now())
        log("device.opened", device=self.name, path=self.path, direct=self.direct, units=opened.units)
        if known:
            self.free_listed(range(units_before, self.units))
        self.openings.fire()

    def _now(self) -> float:
        return time.monotonic()  # the loop's own goes by whole milliseconds


def make_bounce() -> int:
    """A descriptor of the memory through which the cleaner moves pages."""
    fd = os.memfd_create("kvtier-bounce", os.MFD_CLOEXEC)
    os.ftruncate(fd, BOUNCE_BYTES)
    return fd
