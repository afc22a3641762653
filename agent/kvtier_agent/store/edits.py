"""Deletions, expiry and pins: what changes a pool's blocks other than puts and eviction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from kvtier_client.protocol import messages as m

from . import jobs
from .aio import let_others
from .core import Core, Pool, unix_now
from .errors import JobFailed, MoverDied, Refusal
from .log import log
from .movers import Priority
from .put_plan import check_chain

_NOTES_BYTES: Final = 4 << 20
"""Of notes of what was deleted; then the slots concerned are cleared, and the notes begin anew."""
_HASHES: Final = 4096
"""Of one note: they have to fit into a frame."""
_ATTEMPTS: Final = 3
_BLOCKS: Final = 32
"""Deleted at a stretch."""
_PINNED_PART: Final = 4
"""Pins take up to a quarter of the quota in dram."""


class Edits:
    """Carries them out. Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def delete(self, pool: Pool, message: m.Delete) -> m.Done:
        """Take blocks, and all below them, out of every tier; durable on return. Raises Refusal."""
        check_chain(message.layout, message.hashes)
        if pool.index.linking:
            raise Refusal(
                m.RefusalCode.NOT_READY, "a device of the pool is being read for the first time; try again in a moment"
            )
        try:
            await self._delete(pool, message.layout, message.hashes.split())
        except JobFailed as error:
            raise Refusal(
                m.RefusalCode.UNAVAILABLE, f"the blocks are gone now, but may come back after a restart: {error}"
            ) from error
        return m.Done(message.request_id)

    async def expire(self, pool: Pool) -> None:
        """Delete what is older than the pool's time to live. Raises JobFailed."""
        ttl_s = pool.grant.ttl_s if pool.grant else 0
        if not ttl_s:
            return
        before = unix_now() - ttl_s
        gone = False
        while due := pool.index.expire(before, _BLOCKS):
            gone = True
            for layout, hash_ in due:
                cut, slots = pool.index.delete(layout, hash_)
                pool.counters["blocks_expired"] += len(cut) // len(hash_)
                pool.index.free_deleted(slots)  # a successor finds them as old as they are
            pool.progress.fire()
            await let_others()
        if gone:
            await self._core.nvme.expired(pool, int(before))

    def pin(self, pool: Pool, message: m.Pin) -> m.PinReply:
        """Keep leading blocks, within the pool's limit. Raises Refusal."""
        check_chain(message.layout, message.hashes)
        until = unix_now() + message.seconds if message.seconds > 0 else 0.0
        limit = pool.dram_quota // _PINNED_PART
        hashes = message.hashes.length, message.hashes.packed
        return m.PinReply(message.request_id, pool.index.pin_prefix(message.layout, hashes, until, limit))

    async def _delete(self, pool: Pool, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Cut now, and wait until that is noted in every tier."""
        cut: list[bytes] = []
        freed: list[tuple[int, int]] = []
        for number, hash_ in enumerate(hashes, 1):
            gone, slots = pool.index.delete(layout, hash_)
            cut += [gone[at : at + len(hash_)] for at in range(0, len(gone), len(hash_))]
            freed += slots
            if number % _BLOCKS == 0:
                await let_others()
        pool.counters["blocks_deleted"] += len(cut)
        cutoff = time.monotonic_ns()
        pool.index.free_deleted(freed)  # whoever takes one again begins it after the cutoff
        pool.progress.fire()
        cut = list(dict.fromkeys([*cut, *hashes]))  # also what is no longer in the index may lie in a slot
        notes = [cut[at : at + _HASHES] for at in range(0, len(cut), _HASHES)]
        await asyncio.gather(
            self._core.nvme.deleted(pool, layout, cut), *(self._note(pool, layout, note, cutoff) for note in notes)
        )

    async def _note(self, pool: Pool, layout: bytes, hashes: list[bytes], cutoff: int) -> None:
        """Note in the arena. May be repeated: where the notes end moves on only with success. Raises JobFailed."""
        core = self._core
        async with pool.deleting:
            for attempt in range(1, _ATTEMPTS + 1):
                job = jobs.NoteDeleted(core.movers.next_id(), pool.uid, pool.notes_end, layout, hashes, cutoff)
                try:
                    (done,) = await core.movers.run(job, Priority.DELETE)
                    break
                except MoverDied:
                    if attempt == _ATTEMPTS:
                        raise
            pool.notes_end = done.value
            if pool.notes_end > _NOTES_BYTES:
                chunks = [chunk.id for chunk in core.chunks.of_pool(pool.uid)]
                job_ = jobs.ClearDeleted(core.movers.next_id(), pool.uid, chunks)
                try:
                    await core.movers.run(job_, Priority.SCAN)
                    pool.notes_end = 0
                except JobFailed as error:
                    log("delete.notes_not_cleared", pool=pool.uid, error=error)
