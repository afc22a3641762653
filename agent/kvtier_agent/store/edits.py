"""Deletions, expiry and pins: what changes a pool's blocks other than puts and eviction."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from kvtier_client.protocol import messages as m
from kvtier_index import Refused

from . import jobs
from .aio import let_others
from .core import Core, Pool, unix_now
from .errors import JobFailed, MoverDied, Refusal
from .log import log
from .movers import Priority
from .put_plan import check_chain, refusal_of

_NOTES_BYTES: Final = 4 << 20
"""Of notes of what was deleted; then those that no slot needs are dropped, and again at twice what is left."""
_HASHES: Final = 4096
"""Of one note: they have to fit into a frame."""
_ATTEMPTS: Final = 3
_BLOCKS: Final = 32
"""Deleted at a stretch."""
_LINK_POLL_S: Final = 0.02
_PINNED_PART: Final = 4
"""Pins take up to a quarter of the quota in dram."""


class Edits:
    """Carries them out. Event loop thread only."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def delete(self, pool: Pool, message: m.Delete) -> m.Done:
        """Take blocks, and all below them, out of every tier; durable on return. Raises Refusal."""
        check_chain(message.layout, message.hashes)
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
        before = math.ceil(unix_now() - ttl_s)
        gone = False
        while due := pool.index.expire(before, _BLOCKS):
            gone = True
            for layout, hash_ in due:
                cut, slots = pool.index.delete(layout, hash_)
                pool.counters["blocks_expired"] += len(cut) // len(hash_)
                pool.index.free_deleted(slots)  # the note covers them all
            pool.progress.fire()
            await let_others()
        if gone:
            self._core.tasks.start("note expiry", self._note_expired(pool, before, time.monotonic_ns()))
            await self._core.nvme.expired(pool, before)

    def pin(self, pool: Pool, message: m.Pin) -> m.PinReply:
        """Keep leading blocks, within the pool's limit. Raises Refusal."""
        check_chain(message.layout, message.hashes)
        until = unix_now() + message.seconds if message.seconds > 0 else 0.0
        limit = pool.dram_quota // _PINNED_PART
        hashes = message.hashes.length, message.hashes.packed
        try:
            return m.PinReply(message.request_id, pool.index.pin_prefix(message.layout, hashes, until, limit))
        except Refused as error:
            raise refusal_of(error) from error

    async def _delete(self, pool: Pool, layout: bytes, hashes: Sequence[bytes]) -> None:
        """Cut now, and wait until that is noted in every tier. Raises JobFailed.

        What a device that came late brings was read before that was noted, and is cut once it is linked.
        """
        await self._cut(pool, layout, hashes, noted=hashes)
        while pool.index.linking:
            await asyncio.sleep(_LINK_POLL_S)
        await self._cut(pool, layout, hashes, noted=[])

    async def _cut(self, pool: Pool, layout: bytes, hashes: Sequence[bytes], noted: Sequence[bytes]) -> None:
        """Take the blocks and all below them out of the index; note those that were there, and `noted`."""
        cut: list[bytes] = []
        freed: list[tuple[int, int]] = []
        for number, hash_ in enumerate(hashes, 1):
            if pool.index.linking:
                break
            gone, slots = pool.index.delete(layout, hash_)
            cut += [gone[at : at + len(hash_)] for at in range(0, len(gone), len(hash_))]
            freed += slots
            if number % _BLOCKS == 0:
                await let_others()
        pool.counters["blocks_deleted"] += len(cut)
        cutoff = time.monotonic_ns()
        pool.index.free_deleted(freed)  # whoever takes one again begins it after the cutoff
        pool.progress.fire()
        gone_now = list(dict.fromkeys([*cut, *noted]))  # also what is no longer in the index may lie in a slot
        notes = [gone_now[at : at + _HASHES] for at in range(0, len(gone_now), _HASHES)]
        if notes:
            await asyncio.gather(
                self._core.nvme.deleted(pool, layout, gone_now),
                *(self._note_deleted(pool, layout, note, cutoff) for note in notes),
            )

    async def _note_deleted(self, pool: Pool, layout: bytes, hashes: list[bytes], cutoff: int) -> None:
        next_id = self._core.movers.next_id
        await self._note(pool, lambda at: jobs.NoteDeleted(next_id(), pool.uid, at, layout, hashes, cutoff))

    async def _note_expired(self, pool: Pool, before: int, cutoff: int) -> None:
        """A longer time to live does not bring back, with the next start, what has expired."""
        next_id = self._core.movers.next_id
        await self._note(pool, lambda at: jobs.NoteExpired(next_id(), pool.uid, at, before, cutoff))

    async def _note(self, pool: Pool, job_at: Callable[[int | None], jobs.Job]) -> None:
        """Note in the arena. May be repeated: where the notes end moves on only with success. Raises JobFailed."""
        async with pool.deleting:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    (done,) = await self._core.movers.run(job_at(pool.notes_end), Priority.DELETE)
                    break
                except MoverDied:
                    if attempt == _ATTEMPTS:
                        raise
            pool.notes_end = done.value
            if done.value > max(_NOTES_BYTES, 2 * pool.notes_kept):
                await self._compact_notes(pool, done.value)

    async def _compact_notes(self, pool: Pool, end: int) -> None:
        """Drop the notes that no slot needs. Where that fails the file says what is left, and it is not tried soon."""
        job = jobs.CompactNotes(self._core.movers.next_id(), pool.uid, pool.fills.oldest())
        pool.notes_end, pool.notes_kept = None, end
        try:
            (done,) = await self._core.movers.run(job, Priority.SCAN)
            pool.notes_end = pool.notes_kept = done.value
        except JobFailed as error:
            log("delete.notes_not_compacted", pool=pool.uid, error=error)
