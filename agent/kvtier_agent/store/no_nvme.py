"""The nvme tier of a store that has none: dram alone."""

from __future__ import annotations

from collections.abc import Sequence

from kvtier_client.protocol.messages import Reach, Report

from kvtier_agent.control import DeviceSnapshot

from .ports import PoolView


class NoNvme:
    """Implements `ports.NvmeTier` by doing nothing."""

    async def open(self) -> set[str]:
        """Nothing is found."""
        return set()

    async def stage(self, pool: PoolView) -> None:
        """Nothing is staged."""

    async def close(self) -> None:
        """Nothing is open."""

    def has_place(self, pool: PoolView) -> bool:
        """Never."""
        del pool
        return False

    def stored(self, pool: PoolView, pages: Sequence[int], *, grew: bool = False) -> None:
        """Nothing is written."""

    async def settle(self, pool: PoolView, pages: Sequence[int], reach: Reach, deadline: float) -> Reach:
        """No further than dram."""
        del pool, pages, reach, deadline
        return Reach.DRAM

    def admits_by_use(self, pool: PoolView) -> bool:
        """Never."""
        del pool
        return False

    def used(self, pool: PoolView, pages: Sequence[int]) -> None:
        """Nothing is written."""

    def writing(self, pool: PoolView) -> bool:
        """Never."""
        del pool
        return False

    def relieve(self, pool: PoolView, slot_bytes: int) -> None:
        """Nothing is written."""

    async def load(self, pool: PoolView, pages: Sequence[int], deadline: float) -> None:
        """Nothing is below dram."""

    async def deleted(self, pool: PoolView, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Nothing outlives dram."""

    async def expired(self, pool: PoolView, before: int) -> None:
        """Nothing outlives dram."""

    async def purge(self, pool: PoolView) -> None:
        """Nothing is there."""

    async def flush(self, pool: PoolView, deadline: float) -> bool:
        """All that is to be written is."""
        del pool, deadline
        return True

    def offered(self, pool: PoolView, layout: bytes, whole: int, in_dram: int) -> int:
        """What is in dram pays."""
        del pool, layout, in_dram
        return whole

    def report(self, pool: PoolView, report: Report) -> None:
        """Nothing is restored from below dram."""

    def forget_chunk(self, pool_uid: str, chunk: int) -> None:
        """No mover has it mapped."""

    def used_bytes(self, pool_uid: str) -> int:
        """None."""
        del pool_uid
        return 0

    def gauges(self, pool: PoolView) -> dict[str, float]:
        """Nothing is read."""
        del pool
        return {}

    def found(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def waits_for_start(self) -> bool:
        """Nothing comes late."""
        return False

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """There are none."""
        return ()
