"""Reads: lookups, gets, holds and prefetches. What lies in dram is answered at once, without a task.

Tasks are started only for what has to be brought up from below dram.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kvtier_client.protocol import messages as m
from kvtier_client.protocol.places import PLACE
from kvtier_index import Hold, Refused

from .core import Core, Pool, unix_now
from .errors import Refusal
from .holds import HOLD_S
from .put_plan import check_chain, check_pages, refusal_of
from .puts import deadline_of
from .touches import Touches

if TYPE_CHECKING:
    from kvtier_index import Key

_HOLD_MS: Final = int(HOLD_S * 1000)
_MAX_PREFETCHES: Final = 64
"""Under way in one pool; further ones bring nothing up."""


_PLACE_BYTES: Final = PLACE.size
_TIER_AT: Final = _PLACE_BYTES - 4
"""Lowest byte of a place's tier; 0: dram."""


class Part(NamedTuple):
    """A part of a get's answer, and the chunks that it names."""

    reply: m.GetReply
    chunks: Sequence[int]


class Gets:
    """Carries out reads. Event loop thread only."""

    def __init__(self, core: Core, touches: Touches) -> None:
        self._core, self._touches = core, touches
        self._prefetches: Counter[str] = Counter()

    def lookup(self, pool: Pool, message: m.Lookup) -> m.LookupReply:
        """Answer a lookup at once. Raises Refusal."""
        keys = _check(message.layout, message.hashes, message.pages)
        whole, in_dram = _find(pool, message.layout, message.hashes, keys)
        counters = pool.counters
        counters["lookups"] += 1
        counters["blocks_asked"] += len(message.hashes)
        counters["blocks_hit"] += whole
        pool.window.count(len(message.hashes), whole)
        offered = self._core.nvme.offered(pool, message.layout, whole, in_dram)
        counters["blocks_not_offered"] += whole - offered
        if message.prefetch and in_dram < offered:
            self._prefetch(pool, message.layout, message.hashes.part(0, offered), keys)
        return m.LookupReply(message.request_id, whole, in_dram, offered)

    def get_nowait(self, pool: Pool, pod: str, message: m.Get) -> Part | Hold:
        """The answer, if all that is whole lies in dram; else the pins, for `get_parts`. Raises Refusal."""
        keys = _check(message.layout, message.hashes, message.pages)
        if message.stream and any(key[2] for key in keys):
            raise Refusal(m.RefusalCode.MALFORMED, "a streamed get names a trailing page; ask for it without stream")
        pins = _hold(pool, message.layout, message.hashes, keys)
        if pins.ready_blocks() < pins.blocks:
            return pins
        return self._last_part(pool, pod, message, pins, 0, 0)

    async def get_parts(self, pool: Pool, pod: str, message: m.Get, pins: Hold, send: Callable[[Part], None]) -> None:
        """Bring up what lies below dram, and say where: in parts where the client asked for it, else all at once."""
        deadline = deadline_of(message.deadline_ms)
        load = self._core.tasks.start("load", self._load(pool, pins, deadline))
        load.add_done_callback(lambda _: pool.progress.fire())
        sent, hold_id = 0, 0
        while message.stream and not load.done():
            ready = pins.ready_blocks()
            if ready > sent:
                hold_id = hold_id or self._take(pool, pod, message, pins)
                send(self._part(pool, message, pins, sent, ready, hold_id, more=True))
                sent = ready
            elif not await pool.progress.wait(deadline):
                break
        await asyncio.wait((load,))
        pins.settle(max(sent, pins.ready_blocks()))
        send(self._last_part(pool, pod, message, pins, sent, hold_id))

    async def hold(self, pool: Pool, pod: str, message: m.Hold) -> m.HoldReply:
        """Bring up and hold, without naming places. Raises Refusal."""
        keys = _check(message.layout, message.hashes, message.pages)
        pins = _hold(pool, message.layout, message.hashes, keys)
        if pins.ready_blocks() < pins.blocks:
            await self._load(pool, pins, deadline_of(message.deadline_ms))
            pins.settle(pins.ready_blocks())
        if not pins.blocks:
            pins.release()
            return m.HoldReply(message.request_id, 0)
        hold_id = pool.holds.take(pod, pins, asyncio.get_running_loop().time())
        return m.HoldReply(message.request_id, pins.blocks, hold_id, _HOLD_MS)

    def prefetch(self, pool: Pool, message: m.Prefetch) -> m.PrefetchReply:
        """Start to bring up; how many blocks are in dram or on their way. Raises Refusal."""
        keys = _check(message.layout, message.hashes, message.pages)
        return m.PrefetchReply(message.request_id, self._prefetch(pool, message.layout, message.hashes, keys))

    def _prefetch(self, pool: Pool, layout: bytes, hashes: m.HashList, keys: Sequence[Key]) -> int:
        pins = _hold(pool, layout, hashes, keys)
        ready = pins.ready_blocks()
        if ready == pins.blocks or self._prefetches[pool.uid] >= _MAX_PREFETCHES:
            pins.release()
            return ready
        self._prefetches[pool.uid] += 1
        self._core.tasks.start("prefetch", self._bring_up(pool, pins))
        return pins.blocks

    async def _bring_up(self, pool: Pool, pins: Hold) -> None:
        try:
            await self._load(pool, pins, asyncio.get_running_loop().time() + HOLD_S)
        finally:
            self._prefetches[pool.uid] -= 1
            pins.release()
            pool.progress.fire()

    async def _load(self, pool: Pool, pins: Hold, deadline: float) -> None:
        """Bring the missing pages up, and wait for those that others bring, until the deadline.

        Where they find no room, the later half of what is still to come gives its own room up.
        """
        found = pins.blocks
        _fit(pins, pool.dram_quota)
        loop = asyncio.get_running_loop()
        while (missing := pins.missing()) and loop.time() < deadline:
            await self._core.nvme.load(pool, missing, deadline)
            ready = pins.ready_blocks()
            if pins.missing() and pins.blocks > ready:
                pins.settle(ready + (pins.blocks - ready) // 2)
        while pins.ready_blocks() < pins.blocks and not pins.missing():
            if not await pool.progress.wait(deadline):
                break
        pool.counters["blocks_late"] += pins.blocks - pins.ready_blocks()
        pool.counters["blocks_without_room"] += found - pins.blocks

    def _last_part(self, pool: Pool, pod: str, message: m.Get, pins: Hold, sent: int, hold_id: int) -> Part:
        """What of the settled pins was not sent yet."""
        if not pins.blocks:
            pins.release()
            return Part(m.GetReply(message.request_id, 0, b""), ())
        hold_id = hold_id or self._take(pool, pod, message, pins)
        return self._part(pool, message, pins, sent, pins.blocks, hold_id, more=False)

    def _take(self, pool: Pool, pod: str, message: m.Get, pins: Hold) -> int:
        """The id of the hold that keeps the pins from now on."""
        if message.hold_id and pool.holds.extend(pod, message.hold_id, pins):
            return message.hold_id
        return pool.holds.take(pod, pins, asyncio.get_running_loop().time())

    def _part(self, pool: Pool, message: m.Get, pins: Hold, start: int, stop: int, hold_id: int, *, more: bool) -> Part:
        places, chunks = pins.pack_places(start, stop)
        self._touches.add(pool, places)
        in_dram = places[_TIER_AT::_PLACE_BYTES].count(0)
        pool.counters["pages_read_dram"] += in_dram  # what comes from nvme is counted where it is read
        if not more:
            pool.counters["bytes_read_dram"] += pins.bytes()[0]
            if self._core.nvme.admits_by_use(pool):
                asyncio.get_running_loop().call_soon(self._core.nvme.used, pool, pins.pages)
        return Part(m.GetReply(message.request_id, stop - start, places, hold_id, _HOLD_MS, more), chunks)


def _fit(pins: Hold, quota_bytes: int) -> None:
    """Keep as many leading blocks as the quota has room for, going by their mean size."""
    size = sum(pins.bytes())
    if size > quota_bytes:
        pins.settle(pins.blocks * quota_bytes // size)


def _check(layout: bytes, hashes: m.HashList, pages: Sequence[m.PageId]) -> list[Key]:
    check_chain(layout, hashes)
    return check_pages(pages, len(hashes))


def _find(pool: Pool, layout: bytes, hashes: m.HashList, keys: Sequence[Key]) -> tuple[int, int]:
    try:
        return pool.index.find(layout, (hashes.length, hashes.packed), keys)
    except Refused as error:
        raise refusal_of(error) from error


def _hold(pool: Pool, layout: bytes, hashes: m.HashList, keys: Sequence[Key]) -> Hold:
    try:
        return pool.index.hold(layout, (hashes.length, hashes.packed), keys, unix_now())
    except Refused as error:
        raise refusal_of(error) from error
