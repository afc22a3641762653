"""The devices of the NVMe tier: opening them, and closing one that fails.

A closed device's pages are misses and nothing is written to it; the store serves on with the others.
"""

from __future__ import annotations

from . import jobs
from .core import Core
from .errors import FormatRefused, JobFailed
from .log import log
from .movers import Priority
from .nvme import Device


class Devices:
    """Opens and closes devices. Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def open(self, device: Device) -> list[jobs.SegmentFound]:
        """Check the device's format and list its segments; none if it has to stay closed."""
        job = jobs.ProbeDevice(self._core.movers.next_id(), str(device.path))
        try:
            parts = await self._core.movers.run(job, Priority.SCAN)
        except (FormatRefused, JobFailed) as error:
            self.close(device, str(error))
            return []
        found = []
        for part in parts:
            assert isinstance(part, jobs.DeviceProbed)
            device.direct = part.direct
            found += part.segments
        log("device.opened", device=device.name, path=device.path, direct=device.direct, segments=len(found))
        return found

    def close(self, device: Device, reason: str) -> None:
        """Use the device no more until the store starts again."""
        if device.error:
            return
        device.error = f"{reason}; repair it, then restart the store"
        log("device.closed", device=device.name, path=device.path, error=reason)
        for segment in list(self._core.nvme.segments.values()):
            if segment.device is not device:
                continue
            pool = self._core.pools[segment.pool_uid]
            for page in list(segment.pages):
                if page.nvme is not None and page.nvme.segment is segment:
                    pool.index.drop_nvme(page)
            self._core.nvme.discard(segment)
            pool.progress.fire()
