"""Holds, pins, deletions, prefetches, trailing pages and streamed gets over the real protocol, in DRAM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kvtier_client.protocol import messages as m

from tests.unit.store.conftest import MakeStore
from tests.unit.store.process import StoreProcess, wait_for
from tests.unit.store.rawclient import LAYOUT, RawClient, chain, data_of, hashes_of, held_of


@pytest.fixture
def store(make_store: MakeStore) -> StoreProcess:
    """8 MiB of DRAM, and nothing else."""
    store = make_store()
    del store.config["nvme"]
    return store.start()


@pytest.fixture
def client(store: StoreProcess) -> Iterator[RawClient]:
    with store.connect() as connected:
        yield connected


def fill(client: RawClient, chains: int) -> None:
    for number in range(chains):
        client.put(None, chain(f"filler-{number}", 32))


def test_hold_keeps_blocks_whose_places_are_asked_for_by_its_id_on_another_connection(
    store: StoreProcess, client: RawClient
) -> None:
    blocks = chain("a", 20)
    client.put(None, blocks)
    held = client.hold(hashes_of(blocks))
    assert (held.blocks, held.hold_id > 0, held.hold_ms > 0) == (20, True, True)
    with store.connect() as worker:
        fill(worker, 8)
        got = worker.get(hashes_of(blocks), hold_id=held.hold_id)
        assert (got.blocks, got.hold_id) == (20, held.hold_id)
        assert [worker.read(place) for place in got.places] == data_of(blocks)
    client.release(held)
    fill(client, 8)
    wait_for("it leaves", lambda: client.lookup(hashes_of(blocks)).whole_blocks < 20)


def test_get_by_a_hold_that_ended_makes_another(client: RawClient) -> None:
    blocks = chain("a", 5)
    client.put(None, blocks)
    got = client.get(hashes_of(blocks), hold_id=12345)
    assert (got.blocks, got.hold_id not in (0, 12345)) == (5, True)


def test_hold_of_nothing_holds_nothing(client: RawClient) -> None:
    held = client.hold(hashes_of(chain("none", 3)))
    assert (held.blocks, held.hold_id) == (0, 0)


def test_streamed_get_of_what_is_in_dram_comes_in_one_part(client: RawClient) -> None:
    blocks = chain("a", 20)
    client.put(None, blocks)
    got = client.get(hashes_of(blocks), stream=True)
    assert (got.blocks, got.more) == (20, False)
    assert [client.read(place) for place in got.places] == data_of(blocks)


def test_prefetch_answers_with_what_is_in_dram(client: RawClient) -> None:
    blocks = chain("a", 7)
    client.put(None, blocks)
    reply = client.ask(m.Prefetch(77, LAYOUT, m.HashList.of(hashes_of(chain("a", 10)))))
    assert reply == m.PrefetchReply(77, 7)
    found = client.lookup(hashes_of(blocks), prefetch=True)
    assert (found.whole_blocks, found.dram_blocks, found.offered_blocks) == (7, 7, 7)


def test_deleted_block_takes_all_below_it_and_the_rest_stays(client: RawClient) -> None:
    blocks, other = chain("a", 20), chain("b", 5)
    client.put(None, blocks)
    client.put(None, other)
    fork = chain("fork", 4)
    client.put(blocks[14][0], fork)
    assert isinstance(client.delete([blocks[10][0]]), m.Done)
    assert client.lookup(hashes_of(blocks)).whole_blocks == 10
    assert client.lookup([*hashes_of(blocks[:15]), *hashes_of(fork)]).whole_blocks == 10
    assert client.read_all(hashes_of(other)) == data_of(other)
    assert client.put(blocks[14][0], fork).code == m.RefusalCode.PARENT_ABSENT


def test_reader_that_holds_a_deleted_block_still_reads_it(client: RawClient) -> None:
    blocks = chain("a", 5)
    client.put(None, blocks)
    got = client.get(hashes_of(blocks))
    client.delete([blocks[0][0]])
    fill(client, 6)
    assert [client.read(place) for place in got.places] == data_of(blocks)
    assert client.lookup(hashes_of(blocks)).whole_blocks == 0


def test_many_deletions_at_once_are_answered_once_they_hold(client: RawClient) -> None:
    blocks = chain("a", 60)
    client.put(None, blocks)
    absent = [f"absent-{number}".encode().ljust(32) for number in range(10_000)]
    assert isinstance(client.delete([*absent, blocks[3][0]]), m.Done)
    assert client.lookup(hashes_of(blocks)).whole_blocks == 3


def test_pinned_blocks_stay_while_others_go_and_an_unpinned_one_goes(client: RawClient) -> None:
    blocks = chain("a", 20)
    client.put(None, blocks)
    assert client.pin(hashes_of(blocks), 600).blocks == 20
    fill(client, 12)
    assert client.read_all(hashes_of(blocks)) == data_of(blocks)
    assert client.pin(hashes_of(blocks), 0).blocks == 20
    fill(client, 16)
    wait_for("it leaves", lambda: fill(client, 4) or client.lookup(hashes_of(blocks)).whole_blocks < 20)


def test_pins_take_at_most_a_quarter_of_the_quota(client: RawClient) -> None:
    blocks = chain("a", 60)
    client.put(None, blocks)
    assert client.pin(hashes_of(blocks), 600).blocks == 32
    assert client.pin(hashes_of(blocks), 0).blocks >= 32


def test_pin_ends_by_itself(client: RawClient) -> None:
    blocks = chain("a", 20)
    client.put(None, blocks)
    assert client.pin(hashes_of(blocks), 1).blocks == 20
    wait_for("it leaves", lambda: fill(client, 8) or client.lookup(hashes_of(blocks)).whole_blocks < 20)


def test_trailing_page_is_needed_of_the_last_blocks_only(client: RawClient) -> None:
    blocks = chain("a", 10)
    window = m.PageId(1, 0, 2)
    client.put(None, blocks)
    client.put(blocks[5][0], blocks[6:8], page=window)
    pages = (m.PageId(), window)
    assert client.lookup(hashes_of(blocks), pages=pages).whole_blocks == 8
    got = client.get(hashes_of(blocks), pages=pages)
    assert (got.blocks, len(got.places)) == (8, 8 + 2)
    expected = [*data_of(blocks[:6]), *(data for data in data_of(blocks[6:8]) for _ in range(2))]
    assert [client.read(place) for place in got.places] == expected


def test_report_of_an_engines_speed_is_taken_and_not_answered(client: RawClient) -> None:
    for number in range(200):
        layout = number.to_bytes(32, "little")
        client.send(m.Report(layout, 16, 1000.0, 0, 1024.0))
    assert client.lookup(hashes_of(chain("a", 1))).whole_blocks == 0


def test_two_streamed_gets_on_one_connection_are_told_apart(client: RawClient) -> None:
    first, second = chain("a", 3), chain("b", 4)
    client.put(None, first)
    client.put(None, second)
    client.send(m.Get(101, LAYOUT, m.HashList.of(hashes_of(first)), 1000, stream=True))
    client.send(m.Get(102, LAYOUT, m.HashList.of(hashes_of(second)), 1000, stream=True))
    replies = [client.receive(), client.receive()]
    assert [(reply.request_id, reply.blocks) for reply in replies] == [(101, 3), (102, 4)]
    assert [client.read(place) for place in held_of(replies[1]).places] == data_of(second)
