"""What the two halves of the index process owe each other: the nvme tier, and what stands above it.

Implementers: `core.Pool` (PoolView), `room.Room` (SlotRoom), `nvme.tier.Nvme` (NvmeTier); a store without nvme has
`ports.NoNvme`. All on the event loop's thread. Page numbers are the index's: good until the next await unless pinned.

Of the mover side the nvme tier uses `chunkmap.ChunkMaps.get(pool_uid, chunk) -> ChunkMap` with
`begin(slot, generation)`, `payload(slot, size) -> memoryview` and `commit(ref: refs.Ref)` (slot header with the page
checksum from `ref.digest`); distinct slots may be used from distinct threads. It keeps its mover processes itself
(`nvme.io_movers`), each with the lock file `<arena>/movers/dev-NAME.lock`, and is told of chunks that are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvtier_client.protocol.messages import Reach, Report
from kvtier_index import Index

from kvtier_agent.control import DeviceSnapshot, PoolGrant

from .aio import Signal
from .fills import Fills


class PoolView(Protocol):
    """A pool, as the nvme tier sees it."""

    uid: str
    index: Index
    grant: PoolGrant | None
    counters: Counter[str]
    progress: Signal
    """Fired when pages arrived in DRAM, were written, or room may have come. Waiters look again."""
    fills: Fills
    """What goes into slots goes through these."""


class SlotRoom(Protocol):
    """Makes room in DRAM for pages that are read from nvme."""

    def free_slots(self, pool: PoolView, slot_bytes: int) -> int | None:
        """How many slots of this class may be taken now; None: any number, since the pool has all its memory.

        Nothing is evicted while the pool may still grow: then `make_room` makes the next chunk.
        """

    async def make_room(self, pool: PoolView, slot_bytes: int, deadline: float) -> bool:
        """Whether the pool has a slot of this class free or evictable now (the loop's time for `deadline`)."""


class NvmeTier(Protocol):
    """The nvme tier of one store."""

    async def open(self) -> set[str]:
        """Start the device movers, check the devices, read their records and unit headers: the pools found there.

        A device that does not answer stays closed, and is tried again in the background. Nothing raised for it.
        """

    async def stage(self, pool: PoolView) -> None:
        """Give the pool's index all that lies on nvme (`stage_entries`), deletions and expiry applied.

        Before `Index.link`, and before the pool is served. Pools may be staged at once.
        """

    async def close(self) -> None:
        """Seal what is open, flush, end the device movers. `flush` first."""

    def has_place(self, pool: PoolView) -> bool:
        """Whether pages of the pool are written to nvme at all."""

    def stored(self, pool: PoolView, pages: Sequence[int], *, grew: bool = False) -> None:
        """A put committed `pages` (its chain from the root, chain order): write what policy says is to be written.

        `grew`: the put's first page hangs on one that was there before. Never waits.
        """

    async def settle(self, pool: PoolView, pages: Sequence[int], reach: Reach, deadline: float) -> Reach:
        """Write `pages` (as in `stored`) whatever the policy, and say how far all of them got by `deadline`.

        The numbers need to be good only when called.
        """

    def admits_by_use(self, pool: PoolView) -> bool:
        """Whether to be told of the pages that gets hit: `used`."""

    def used(self, pool: PoolView, pages: Sequence[int]) -> None:
        """A get hit these pages (chain order): write them. Never waits."""

    def writing(self, pool: PoolView) -> bool:
        """Whether pages of the pool are on their way to nvme, or from place to place there, so that room may come."""

    def relieve(self, pool: PoolView, slot_bytes: int) -> None:
        """Room runs short: write back what will be evicted next. Never waits; `progress` fires."""

    async def load(self, pool: PoolView, pages: Sequence[int], deadline: float) -> None:
        """Bring `pages` (missing ones of a hold that pins them; chain order) into DRAM, as far as room and time allow.

        `progress` fires as they arrive, the first ones first. Returns once all that could be begun have arrived or
        failed, or at `deadline`; what arrives later is kept.
        """

    async def deleted(self, pool: PoolView, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Make it durable that these blocks, as written so far, are gone. Raises DeviceError: they may come back."""

    async def expired(self, pool: PoolView, before: int) -> None:
        """As `deleted`, for all that was stored before this time (unix seconds)."""

    async def purge(self, pool: PoolView) -> None:
        """Make it durable that all the pool has is gone, and free its units once their I/O ends. Raises DeviceError."""

    async def flush(self, pool: PoolView, deadline: float) -> bool:
        """Whether all that is to be written of the pool lies flushed on nvme by `deadline`; dirty pages are written."""

    def offered(self, pool: PoolView, layout: bytes, whole: int, in_dram: int) -> int:
        """Of `whole` leading blocks, of which `in_dram` lead in DRAM, how many pay to restore."""

    def report(self, pool: PoolView, report: Report) -> None:
        """An engine's prefill speed, for `offered`."""

    def forget_chunk(self, pool_uid: str, chunk: int) -> None:
        """The chunk is gone: device movers unmap it."""

    def used_bytes(self, pool_uid: str) -> int:
        """Bytes of units that the pool has."""

    def gauges(self, pool: PoolView) -> dict[str, float]:
        """What `PoolSnapshot.gauges` says of reads from nvme; without what is not known (yet)."""

    def found(self) -> dict[str, int]:
        """Segments that were read back since the start, as `Snapshot.adoption` names them."""

    def waits_for_start(self) -> bool:
        """Whether something came too late to be read in, and a start would find all devices, each with all records."""

    def devices(self) -> tuple[DeviceSnapshot, ...]:
        """Each device, in the configuration's order."""
