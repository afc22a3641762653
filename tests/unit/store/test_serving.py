"""Put, lookup and get over the real protocol, against a real process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from kvtier_client.protocol.messages import (
    PageId,
    Reach,
    RefusalCode,
    Refused,
    Tier,
)

from tests.unit.store.conftest import MakeStore
from tests.unit.store.process import StoreProcess
from tests.unit.store.rawclient import RawClient, chain, content, data_of, hashes_of


def fill(client: RawClient, chains: int, *, reach: Reach = Reach.SEALED) -> None:
    """Push what is in an 8 MiB arena out of it: each chain takes 2 MiB."""
    for number in range(chains):
        blocks = chain(f"filler-{number}", 32)
        assert client.put(None, blocks, reach=reach).stored_pages == 32


def test_stored_chain_is_found_and_read_in_place(client: RawClient) -> None:
    blocks = chain("a", 20, size=50_000)
    reply = client.put(None, blocks)
    assert (reply.stored_pages, reply.known_pages, reply.reached) == (20, 0, Reach.DRAM)
    found = client.lookup([*hashes_of(blocks), b"x" * 32])
    assert (found.whole_blocks, found.dram_blocks) == (20, 20)
    held = client.get([*hashes_of(blocks), b"x" * 32])
    assert held.blocks == 20
    assert {place.tier for place in held.places} == {Tier.DRAM}
    assert [client.read(place) for place in held.places] == data_of(blocks)
    assert held.hold_id != 0


def test_chain_continued_by_a_second_put_is_found_whole(client: RawClient) -> None:
    blocks = chain("a", 10)
    client.put(None, blocks[:4])
    client.put(blocks[3][0], blocks[4:])
    assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_put_of_known_pages_leaves_them_as_they_are(client: RawClient) -> None:
    blocks = chain("a", 6)
    client.put(None, blocks[:4])
    other = [(hash_, content(b"other", len(data))) for hash_, data in blocks]
    reply = client.put(None, other[:4] + blocks[4:])
    assert (reply.stored_pages, reply.known_pages) == (2, 4)
    assert client.read_all(hashes_of(blocks)) == data_of(blocks)


def test_put_without_its_parent_is_refused_and_stores_nothing(client: RawClient) -> None:
    blocks = chain("a", 3)
    reply = client.put(b"absent".ljust(32), blocks)
    assert isinstance(reply, Refused)
    assert reply.code == RefusalCode.PARENT_ABSENT
    assert "put the chain from its first absent block on" in reply.message
    assert client.lookup(hashes_of(blocks)).whole_blocks == 0


def test_put_of_a_known_page_with_another_size_is_refused(client: RawClient) -> None:
    ((hash_, data),) = chain("a", 1)
    client.put(None, [(hash_, data)])
    reply = client.put(None, [(hash_, data[:-1])])
    assert (reply.code, reply.request_id) == (RefusalCode.SIZE_MISMATCH, 3)
    assert client.read_all([hash_]) == [data]


def test_block_is_whole_once_all_pages_asked_for_are_there(client: RawClient) -> None:
    blocks = chain("a", 4)
    first, second = PageId(0, 0), PageId(7, 3)
    client.put(None, blocks, page=first)
    client.put(None, blocks[:2], page=second)
    assert client.lookup(hashes_of(blocks), pages=(first, second)).whole_blocks == 2
    assert client.lookup(hashes_of(blocks), pages=(first,)).whole_blocks == 4
    held = client.get(hashes_of(blocks), pages=(second, first))
    assert held.blocks == 2
    assert len(held.places) == 4


def test_layouts_do_not_see_each_other(client: RawClient) -> None:
    blocks = chain("a", 2)
    client.put(None, blocks)
    assert client.lookup(hashes_of(blocks), layout=b"M" * 32).whole_blocks == 0


def test_chain_pushed_out_of_dram_is_read_from_nvme(client: RawClient) -> None:
    blocks = chain("a", 30, size=50_000)
    assert client.put(None, blocks, reach=Reach.FLUSHED).reached == Reach.FLUSHED
    client.push_out(blocks)
    found = client.lookup(hashes_of(blocks))
    assert (found.whole_blocks, found.dram_blocks) == (30, 0)
    held = client.get(hashes_of(blocks))
    assert {place.tier for place in held.places} == {Tier.NVME}
    assert [client.read(place) for place in held.places] == data_of(blocks)
    client.release(held)
    assert {place.tier for place in client.get(hashes_of(blocks)).places} == {Tier.DRAM}


def test_chain_larger_than_dram_comes_as_the_prefix_that_fits(client: RawClient) -> None:
    blocks = chain("a", 200)
    for start in range(0, 200, 50):
        parent = blocks[start - 1][0] if start else None
        assert client.put(parent, blocks[start : start + 50], reach=Reach.SEALED).reached == Reach.SEALED
    assert client.lookup(hashes_of(blocks)).whole_blocks == 200
    held = client.get(hashes_of(blocks))
    assert 50 < held.blocks < 128
    assert [client.read(place) for place in held.places] == data_of(blocks)[: held.blocks]


def test_held_pages_are_not_reused_until_they_are_released(client: RawClient) -> None:
    blocks = chain("held", 40)
    client.put(None, blocks, reach=Reach.SEALED)
    held = client.get(hashes_of(blocks))
    fill(client, 6)
    assert [client.read(place) for place in held.places] == data_of(blocks)
    client.release(held)
    fill_again = chain("more", 100)
    client.put(None, fill_again, reach=Reach.SEALED)
    client.put(None, chain("more-2", 100), reach=Reach.SEALED)
    assert None in [client.read(place) for place in held.places], "no slot was reused, so nothing was shown"


def test_put_with_everything_held_says_what_it_could_not_store(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    with store.start().connect() as client:
        blocks, more = chain("held", 100), chain("more", 100)
        client.put(None, blocks)
        held = client.get(hashes_of(blocks))
        reply = client.put(None, more, deadline_ms=5_000)
        assert 0 < reply.stored_pages < 100
        assert reply.reached is None
        client.get(hashes_of(more))
        again = client.put(None, chain("again", 100, size=80_000), deadline_ms=5_000)
        assert isinstance(again, Refused)
        assert again.code == RefusalCode.NO_ROOM
        assert client.get(hashes_of(blocks)).blocks == 100
        assert [client.read(place) for place in held.places] == data_of(blocks)
        assert client.lookup(hashes_of(more)).whole_blocks == reply.stored_pages


def test_page_larger_than_the_quota_is_refused_with_the_reason(client: RawClient) -> None:
    client.stage(16 << 20)
    reply = client.put(None, [(b"h" * 32, bytes(12 << 20))])
    assert (reply.code, "quota in dram" in reply.message) == (RefusalCode.NO_ROOM, True)


def test_puts_of_the_same_chain_at_once_store_each_page_once(store: StoreProcess) -> None:
    blocks = chain("same", 40)
    replies: list[object] = []

    def put() -> None:
        with store.connect() as client:
            replies.append(client.put(None, blocks))

    threads = [threading.Thread(target=put) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [(reply.stored_pages, reply.known_pages) for reply in replies]  # type: ignore[attr-defined]
    assert sum(stored for stored, _ in counts) == 40
    assert [stored + known for stored, known in counts] == [40] * 6


def test_pages_of_two_sizes_share_the_quota(client: RawClient) -> None:
    large = chain("large", 60, size=100_000)
    small = chain("small", 300, size=3_000)
    client.put(None, large, reach=Reach.SEALED)
    client.put(None, small, reach=Reach.SEALED)
    client.put(None, chain("larger", 60, size=110_000), reach=Reach.SEALED)
    assert client.read_all(hashes_of(small)) == data_of(small)
    assert client.read_all(hashes_of(large)) == data_of(large)


def test_quota_in_dram_bounds_the_pools_chunks(store: StoreProcess, client: RawClient) -> None:
    fill(client, 6)
    assert sum(chunk.stat().st_size for chunk in store.chunks()) <= 8 << 20


def test_quota_on_nvme_bounds_the_pools_segments(make_store: MakeStore) -> None:
    store = make_store()
    store.config["pools"] = [store.pool_config(nvmeQuota="10Mi")]
    with store.start().connect() as client:
        fill(client, 12)
        assert 6 << 20 <= store.nvme_bytes() <= 10 << 20
        last = chain("filler-11", 32)
        assert client.read_all(hashes_of(last)) == data_of(last)
        first = client.lookup(hashes_of(chain("filler-0", 32)))
        assert first.whole_blocks == first.dram_blocks < 32


@pytest.fixture
def two_pools(make_store: MakeStore) -> Iterator[tuple[RawClient, RawClient]]:
    store = make_store()
    other = store.folder / "other.sock"
    store.config["pools"] = [
        store.pool_config(),
        store.pool_config(name="other", uid="pool-uid-2", socket=str(other)),
    ]
    store.start()
    with RawClient(store.socket) as first, RawClient(other) as second:
        yield first, second


def test_pools_do_not_see_each_other(two_pools: tuple[RawClient, RawClient]) -> None:
    first, second = two_pools
    blocks = chain("a", 5)
    first.put(None, blocks)
    assert second.lookup(hashes_of(blocks)).whole_blocks == 0
    assert second.put(blocks[0][0], blocks[1:]).code == RefusalCode.PARENT_ABSENT


def test_pools_over_the_capacity_take_chunks_from_each_other(two_pools: tuple[RawClient, RawClient]) -> None:
    first, second = two_pools
    fill(first, 6)
    blocks = chain("mine", 20, size=30_000)
    assert second.put(None, blocks).stored_pages == 20
    assert second.read_all(hashes_of(blocks)) == data_of(blocks)


def test_store_without_nvme_serves_from_dram_alone(make_store: MakeStore) -> None:
    store = make_store()
    del store.config["nvme"]
    with store.start().connect() as client:
        blocks = chain("a", 20)
        assert client.put(None, blocks, reach=Reach.FLUSHED).reached == Reach.DRAM
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
        for number in range(6):
            assert client.put(None, chain(f"filler-{number}", 32)).stored_pages == 32
        assert client.lookup(hashes_of(blocks)).whole_blocks < 20


def test_chunks_given_back_are_announced_as_gone(client: RawClient) -> None:
    client.get(hashes_of(chain("none", 1)))
    fill(client, 4)
    for number in range(4):
        client.read_all(hashes_of(chain(f"filler-{number}", 32)))
    before = set(client.chunks)
    large = chain("large", 10, size=400_000)
    client.put(None, large, reach=Reach.SEALED)
    client.read_all(hashes_of(large))
    assert client.gone & before
