"""Deletions beside other things that go on in the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from kvtier_agent.store.core import Core, Pool
from kvtier_agent.store.edits import Edits
from kvtier_agent.store.jobs import Done
from kvtier_client.protocol.messages import Delete, HashList

from tests.unit.index.pool import LAYOUT, hash_of
from tests.unit.index.test_recovery import chain


class _Movers:
    """Notes in the arena, which succeed."""

    def next_id(self) -> int:
        return 1

    async def run(self, job: Any, priority: Any) -> list[Done]:
        del priority
        return [Done(job.id, 0)]


class _Nvme:
    """What was made durable."""

    def __init__(self) -> None:
        self.gone: list[bytes] = []

    async def deleted(self, pool: Pool, layout: bytes, hashes: Sequence[bytes]) -> None:
        del pool, layout
        await asyncio.sleep(0)
        self.gone += hashes


class _Core:
    """Of a core what deletions need."""

    def __init__(self) -> None:
        self.movers, self.nvme = _Movers(), _Nvme()


async def test_deletion_waits_for_what_a_late_device_brings_and_takes_it_along() -> None:
    pool, core = Pool("pool-1"), _Core()
    edits = Edits(cast(Core, core))
    pool.index.stage_entries(7, chain("abcd", 10), LAYOUT)
    assert not pool.index.link(1)
    deleting = asyncio.ensure_future(edits.delete(pool, Delete(1, LAYOUT, HashList.of([hash_of("b")]))))
    await asyncio.sleep(0.05)
    assert not deleting.done()
    assert core.nvme.gone == [hash_of("b")], "durable before what is linked is looked at"
    while not pool.index.link(1):
        await asyncio.sleep(0)
    await deleting
    assert pool.index.find(LAYOUT, [hash_of(name) for name in "abcd"], [(0, 0, 0)]) == (1, 0)
    assert core.nvme.gone == [hash_of(name) for name in "b" + "dcb"]
    pool.index.check()
