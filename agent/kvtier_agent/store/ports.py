"""What the dram side and the nvme side of the store call of each other.

Page numbers are good until the next await, unless pinned: so across awaits blocks are named by layout and hash,
and pages by holds. All calls are made on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kvtier_client.protocol.messages import Reach

if TYPE_CHECKING:
    from kvtier_index import Hold, Key

    from kvtier_agent.control import TierUse

    from .core import Pool
    from .policy import NoRoom


class RoomMaker(Protocol):
    """The dram side, as the nvme side sees it. Implemented by `room.Room`."""

    async def make(self, pool: Pool, slot_bytes: int, deadline: float) -> NoRoom | None:
        """Make or free a slot of this class for a caller that `read_plan` gave too few; then ask `read_plan` again.

        `deadline` is the loop's time. NoRoom: there will be none.
        """

    def freed(self, pool: Pool) -> None:
        """Pages of the pool may leave dram now that could not before (written, unpinned, dropped)."""


class NvmeTier(Protocol):
    """The nvme side, as the dram side sees it. A store without nvme has `NoNvme`."""

    async def start(self) -> None:
        """Start the I/O movers, open the devices, read their records and lists of segments.

        A device that cannot be opened stays closed, which is no error.
        """

    def pool_uids(self) -> set[str]:
        """Pools that something was found of."""

    async def recover(self, pool: Pool) -> None:
        """Stage the entries of all the pool's segments in its index, deletions applied. Once, before `link`."""

    def serve(self, pool: Pool) -> None:
        """The pool is recovered and granted: write what is in dram only, as its write policy says."""

    def has_place(self, pool: Pool) -> bool:
        """Whether the pool's pages are written to nvme at all."""

    def stored(self, pool: Pool, layout: bytes, hash_: bytes, keys: Sequence[Key]) -> None:
        """A put stored pages of the chain that ends here: write what of it is to be written. Returns at once."""

    async def settle(
        self, pool: Pool, layout: bytes, hash_: bytes, keys: Sequence[Key], reach: Reach, deadline: float
    ) -> Reach:
        """How far the pages of the chain that ends here got: `reach`, or what was reached by `deadline`."""

    async def load(self, pool: Pool, hold: Hold, deadline: float) -> None:
        """Bring the hold's missing pages into dram, in chain order, as far as there is room and time.

        Fires `pool.progress` whenever some became resident or were given up. Returns when every page is resident or
        given up, and by `deadline` at the latest; what arrives later is kept too. Waits for pages that others load.
        """

    def short_of_room(self, pool: Pool, slot_bytes: int) -> None:
        """A put found few free slots of this class: write-back pools write what will be evicted next. Returns at once."""

    def writes(self, pool: Pool) -> int:
        """Pages that wait to be written, or are being written: they may be evicted soon."""

    async def delete(self, pool: Pool, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Make it durable that these blocks were deleted now. Raises JobFailed."""

    async def purge(self, pool: Pool) -> bool:
        """Free, durably, what is idle of all that the pool has on nvme. Whether nothing is left; else call again."""

    async def trim(self, pool: Pool) -> None:
        """Free what lowered quotas no longer allow, as far as it is idle."""

    async def flush(self, deadline: float) -> bool:
        """Whether all that was put is on its device, flushed, by `deadline` (the loop's time)."""

    async def close(self) -> None:
        """Mark the devices as cleanly shut down if `flush` had success, and end the I/O movers."""

    def use(self) -> TierUse | None:
        """Capacity and use over all pools; None: no nvme is configured."""

    def device_errors(self) -> dict[str, str]:
        """By name, why a device is not in use."""

    def direct_io(self) -> dict[str, bool]:
        """By name, whether a device takes direct I/O."""

    def forget_chunk(self, pool_uid: str, chunk: int) -> None:
        """Have the I/O movers unmap a chunk that is gone."""
