"""The tier from end to end: written, read back, killed, recovered, deleted."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import Any

import pytest
from kvtier_agent.store.errors import DeviceError
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.devices import Device
from kvtier_agent.store.nvme.placement import Segment
from kvtier_agent.store.ports import PoolView
from kvtier_client.protocol.messages import Reach

from tests.unit.store.nvme.patches import before, let_pass
from tests.unit.store.nvme.rig import LAYOUT, MIB, Chain, Rig, RigPool, payload_of


@pytest.mark.parametrize("size", [100, 4096, 5000, 64 << 10, 3 * MIB], ids=str)
async def test_written_chain_is_restored_after_a_kill(rig: Rig, size: int) -> None:
    pool, chain = await rig.pool(), Chain("a", size)
    blocks = 400 if size <= 5000 else 64 if size < MIB else 5
    assert await rig.put(pool, chain, blocks, Reach.FLUSHED) is Reach.FLUSHED
    await rig.kill()
    assert await rig.start() == {"pool-1"}
    pool = await rig.pool()
    assert rig.find(pool, chain) == (blocks, 0)
    assert await rig.get(pool, chain) == blocks
    assert pool.counters["bytes_read_nvme"] == blocks * size
    assert pool.counters["pages_lost_nvme"] == 0


async def test_chain_larger_than_dram_is_restored_as_far_as_there_is_room(rig: Rig) -> None:
    rig.dram_bytes = rig.room.dram_bytes = 128 * MIB
    pool, chain = await rig.pool(), Chain("a", MIB)
    for _ in range(8):
        assert await rig.put(pool, chain, 12, Reach.SEALED) is Reach.SEALED
    await rig.kill()
    rig.dram_bytes = 32 * MIB
    await rig.start()
    pool = await rig.pool()
    assert rig.find(pool, chain) == (96, 0)
    assert 20 <= await rig.get(pool, chain, 1.0) <= 33


async def test_clean_stop_leaves_nothing_to_scan(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 100, Reach.SEALED)
    await rig.nvme.close()
    await rig.start()
    pool = await rig.pool()
    assert all(it.sealed_on_media for it in rig.nvme._books.segments.values())
    assert await rig.get(pool, chain) == 100


async def test_pools_do_not_see_each_other(rig: Rig) -> None:
    first, second = await rig.pool("pool-1"), await rig.pool("pool-2")
    chain = Chain("a")
    await rig.put(first, chain, 20, Reach.FLUSHED)
    other = Chain("a")
    other.extend(20)
    assert rig.find(second, other) == (0, 0)
    await rig.kill()
    await rig.start()
    assert rig.find(await rig.pool("pool-2"), chain) == (0, 0)
    assert rig.find(await rig.pool("pool-1"), chain) == (20, 0)


async def test_deleted_blocks_do_not_come_back_and_rewritten_ones_stay(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    cut, slots = pool.index.delete(LAYOUT, chain.hashes[10])
    hashes = [cut[at : at + 32] for at in range(0, len(cut), 32)]
    assert len(hashes) == 30
    await rig.nvme.deleted(pool, LAYOUT, hashes)
    pool.index.free_deleted(slots)
    again = Chain("a")
    again.extend(10)
    await rig.put(pool, again, 5, Reach.FLUSHED)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    assert rig.find(pool, chain) == (15, 0)
    assert await rig.get(pool, chain) == 15


async def test_slots_count_as_being_filled_as_long_as_they_are_read_into(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    await rig.evict(pool)
    run, begun = Device.run, []

    async def look_and_run(device: Device, job: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(job, jobs.Read):
            begun.append((pool.fills.oldest(), job.begun))
        return await run(device, job, *arguments, **named)

    monkeypatch.setattr(Device, "run", look_and_run)
    assert await rig.get(pool, chain) == 40
    assert begun
    assert all(oldest == begun[0][1] <= own for oldest, own in begun)
    now = time.monotonic_ns()
    assert pool.fills.oldest() >= now, "none is left"


async def test_blocks_deleted_while_they_wait_to_be_written_do_not_come_back(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    goes_on, make_segment = asyncio.Event(), rig.nvme._keeper.make_segment

    async def make_later(pool: PoolView, device: Device) -> Segment | None:
        await goes_on.wait()
        return await make_segment(pool, device)

    rig.nvme._keeper.make_segment = make_later  # type: ignore[method-assign]
    putting = asyncio.create_task(rig.put(pool, chain, 40, Reach.FLUSHED))
    await asyncio.sleep(0.1)
    cut, slots = pool.index.delete(LAYOUT, chain.hashes[10])
    await rig.nvme.deleted(pool, LAYOUT, [cut[at : at + 32] for at in range(0, len(cut), 32)])
    pool.index.free_deleted(slots)
    goes_on.set()
    assert await putting is Reach.DRAM
    await rig.kill()
    await rig.start()
    assert rig.find(await rig.pool(), chain) == (10, 0)


async def test_expired_blocks_do_not_come_back(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 10, Reach.FLUSHED)
    await rig.nvme.expired(pool, int(time.time()) + 100)
    later = Chain("b")
    await rig.put(pool, later, 10, Reach.FLUSHED)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    assert (rig.find(pool, chain), rig.find(pool, later)) == ((0, 0), (10, 0))


async def test_purged_pool_does_not_come_back_and_gives_its_units(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    assert rig.nvme.used_bytes("pool-1") > 0
    await rig.nvme.purge(pool)
    assert rig.nvme.used_bytes("pool-1") == 0
    await rig.kill()
    assert await rig.start() == set()


async def test_pool_found_and_not_served_is_purged(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    await rig.kill()
    await rig.start()
    await rig.nvme.purge(RigPool("pool-1", 0))
    assert rig.nvme.used_bytes("pool-1") == 0


async def test_one_restore_comes_in_large_requests(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a", MIB)
    await rig.put(pool, chain, 24, Reach.FLUSHED)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    sizes: list[int] = []
    (device,) = rig.nvme._books.devices
    begun = device.estimate.begun

    def note(size: int, now: float) -> None:
        sizes.append(size)
        begun(size, now)

    device.estimate.begun = note  # type: ignore[method-assign]
    assert await rig.get(pool, chain) == 24
    assert sum(sizes) >= 24 * MIB
    assert sum(sizes) / len(sizes) >= 2 * MIB  # units of this small device take three pages


async def test_gets_of_one_chain_read_it_once(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a", MIB)
    await rig.put(pool, chain, 16, Reach.FLUSHED)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    assert await asyncio.gather(*(rig.get(pool, chain) for _ in range(5))) == [16] * 5
    assert pool.counters["pages_read_nvme"] == 16
    assert len(pool.index.chunks()) * 8 <= 16 + 8, "nobody makes room for what another one brings"


async def test_full_pool_keeps_writing_and_forgets_its_oldest(rig: Rig) -> None:
    pool = await rig.pool(nvme_quota=64 * MIB)
    chains = [Chain(f"c{number}") for number in range(24)]
    for number, chain in enumerate(chains):
        age_s = 10.0 * (len(chains) - 1 - number)  # uses are told apart by the second
        assert await rig.put(pool, chain, 128, Reach.SEALED, age_s=age_s) is Reach.SEALED
        assert rig.nvme.used_bytes("pool-1") <= 64 * MIB
    found = [rig.find(pool, chain)[0] for chain in chains]
    assert found[-1] == 128
    assert found[0] == 0
    # Of 16 units, one is spared for moving pages, two are kept free for what comes next, and two may be used in part.
    assert sum(found) * chains[0].size >= 11 / 16 * 64 * MIB
    for chain in chains:
        blocks = rig.find(pool, chain)[0]  # now: the cleaner may still be at work, until the get holds them
        assert await rig.get(pool, chain) == blocks


async def test_unit_that_the_cleaner_frees_first_makes_room_as_well(rig: Rig) -> None:
    pool = await rig.pool(nvme_quota=16 * MIB)
    freed = list[Segment]()

    async def free_first(pool: PoolView, victim: Segment) -> None:
        freed.append(victim)
        assert await rig.nvme._keeper.free(pool, victim)

    rig.nvme._keeper.rescue = free_first
    for number in range(8):
        assert await rig.put(pool, Chain(f"c{number}"), 64, Reach.SEALED) is Reach.SEALED
    assert freed


async def test_damaged_page_on_the_device_is_a_miss(rig: Rig) -> None:
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    await rig.nvme.close()
    _damage(rig, chain, 20)
    await rig.start()
    pool = await rig.pool()
    assert rig.find(pool, chain) == (40, 0)
    assert await rig.get(pool, chain) == 20
    assert rig.find(pool, chain)[0] == 20
    assert pool.counters["pages_lost_nvme"] == 1


async def test_page_that_did_not_arrive_stays_away_at_the_next_start_too(rig: Rig) -> None:
    """A summary of its segment would speak of it."""
    pool, chain = await rig.pool(), Chain("a")
    await rig.put(pool, chain, 40, Reach.FLUSHED)
    await rig.kill()
    _damage(rig, chain, 20)
    for _ in range(2):
        await rig.start()
        assert rig.find(await rig.pool(), chain)[0] == 20
        await rig.nvme.close()
    await rig.start()


async def test_what_was_there_before_the_start_is_flushed_before_it_is_said_to_be(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, chain = await rig.pool(), Chain("a")
    assert await rig.put(pool, chain, 40, Reach.SEALED) is Reach.SEALED
    await rig.kill()

    async def fail(_: int) -> None:
        raise DeviceError(errno.EIO, "no flush")

    with monkeypatch.context() as patch:
        before(patch, jobs.Sync, fail)
        await rig.start()
        pool = await rig.pool()
        deadline = asyncio.get_running_loop().time() + 30.0
        assert await rig.nvme.settle(pool, rig._pages(pool, chain), Reach.FLUSHED, deadline) is Reach.SEALED
    assert await rig.nvme.settle(pool, rig._pages(pool, chain), Reach.FLUSHED, deadline) is Reach.FLUSHED


async def test_summary_is_written_behind_a_flush(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = await rig.pool()
    await rig.put(pool, Chain("a"), 40, Reach.SEALED)
    done = before(monkeypatch, (jobs.Sync, jobs.Seal), let_pass)
    await rig.nvme.close()
    assert [type(job) for job in done[:2]] == [jobs.Sync, jobs.Seal]
    await rig.start()


def _damage(rig: Rig, chain: Chain, block: int) -> None:
    (device,) = rig.config.devices
    file = Path(device.path) / "kvtier.dev"
    image = bytearray(file.read_bytes())
    at = image.index(payload_of(chain.hashes[block], 1024)) + 100
    image[at : at + 4] = bytes(4)
    file.write_bytes(image)


async def test_write_back_writes_what_leaves_dram(rig: Rig) -> None:
    pool = await rig.pool(write="back")
    chains = [Chain(f"c{number}", MIB) for number in range(10)]
    await rig.put(pool, chains[0], 4)
    assert pool.counters["bytes_written_nvme"] == 0
    for chain in chains[1:]:
        rig.nvme.relieve(pool, MIB)
        await rig.put(pool, chain, 6)
    await rig.until(lambda: all(rig.find(pool, chain)[0] == len(chain.hashes) for chain in chains))
    assert all([await rig.get(pool, chain) == rig.find(pool, chain)[0] for chain in chains])


async def test_admission_by_reuse_writes_what_is_used_again(rig: Rig) -> None:
    pool = await rig.pool(admission="reused")
    once, grown, hit = (Chain(name) for name in ("once", "grown", "hit"))
    for chain in (once, grown, hit):
        await rig.put(pool, chain, 4)
    await asyncio.sleep(0.3)
    assert pool.counters["pages_written_nvme"] == 0
    await rig.put(pool, grown, 4)
    rig.nvme.used(pool, rig._pages(pool, hit))
    await rig.until(lambda: pool.counters["pages_written_nvme"] == 12)
    await rig.kill()
    await rig.start()
    pool = await rig.pool()
    assert [rig.find(pool, chain)[0] for chain in (once, grown, hit)] == [0, 8, 4]
