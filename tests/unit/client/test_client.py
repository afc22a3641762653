"""The client against an agent that works: what is put comes back, in place and copied."""

from __future__ import annotations

import fcntl
import multiprocessing
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from kvtier_client import Client, Found, Page, PageId, Reach, Restored, Stored, Tier

from tests.unit.client.peer import LAYOUT, ArenaScript, ScriptedAgent, chain, open_descriptors


def blocks(count: int, salt: int = 0) -> list[Page]:
    return [Page(value, bytes([i + salt]) * 4000) for i, value in enumerate(chain(count))]


def test_stored_blocks_come_back_in_place_and_copied(client: Client) -> None:
    stored = client.put(LAYOUT, None, blocks(3))
    assert stored == Stored(3, 0, Reach.DRAM)
    assert client.lookup(LAYOUT, chain(5)) == Found(3, 3, 3)
    with client.get(LAYOUT, chain(5)) as held:
        assert (held.blocks, held.tiers, held.intact()) == (3, (Tier.DRAM,) * 3, 3)
        assert [bytes(view) for view in held.views] == [page.data for page in blocks(3)]
        assert all(view.readonly for view in held.views)
    buffers = [bytearray(4000) for _ in range(5)]
    assert client.get_into(LAYOUT, chain(5), buffers) == Restored(3, (Tier.DRAM,) * 3)
    assert [bytes(buffer) for buffer in buffers[:3]] == [page.data for page in blocks(3)]
    assert not client.misses


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: np.zeros((10, 100), np.float32), id="numpy"),
        pytest.param(lambda: torch.zeros(20, 100, dtype=torch.bfloat16), id="torch-bfloat16"),
        pytest.param(lambda: memoryview(bytearray(4000)).cast("I"), id="memoryview"),
    ],
)
def test_get_into_fills_every_kind_of_buffer(client: Client, make: object) -> None:
    client.put(LAYOUT, None, blocks(1, salt=5))
    buffer = make()  # type: ignore[operator]
    assert client.get_into(LAYOUT, chain(1), [buffer]).blocks == 1
    raw = buffer.view(torch.uint8).numpy() if isinstance(buffer, torch.Tensor) else np.frombuffer(buffer, np.uint8)
    assert (raw == 5).all()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: np.zeros((3, 4000), np.uint8), id="numpy"),
        pytest.param(lambda: np.zeros((3, 10, 100), np.float32), id="numpy-of-three-dimensions"),
        pytest.param(lambda: np.zeros((3, 5000), np.uint8)[:, :4000], id="numpy-padded"),
        pytest.param(lambda: torch.zeros(3, 20, 100, dtype=torch.bfloat16), id="torch-bfloat16"),
        pytest.param(lambda: torch.zeros(3, 4096, dtype=torch.uint8)[:, :4000], id="torch-padded"),
        pytest.param(lambda: list(torch.zeros(3, 1000)), id="list-of-tensors"),
    ],
)
def test_get_into_fills_the_rows_of_an_array(client: Client, make: object) -> None:
    client.put(LAYOUT, None, blocks(3, salt=1))
    rows = make()  # type: ignore[operator]
    assert client.get_into(LAYOUT, chain(3), rows).blocks == 3
    for index, row in enumerate(rows):
        raw = row.view(torch.uint8).numpy() if isinstance(row, torch.Tensor) else row.view(np.uint8)
        assert (raw == index + 1).all()


def test_put_takes_torch_tensors_and_numpy_arrays(client: Client) -> None:
    tensor, array = torch.arange(100, dtype=torch.float32), np.arange(200, dtype=np.int16)
    client.put(LAYOUT, None, [Page(chain(2)[0], tensor), Page(chain(2)[1], array)])
    with client.get(LAYOUT, chain(2)) as held:
        assert bytes(held.views[0]) == tensor.numpy().tobytes()
        assert bytes(held.views[1]) == array.tobytes()


def test_overwritten_page_is_not_intact_and_not_restored(client: Client, arena: ArenaScript) -> None:
    client.put(LAYOUT, None, blocks(3))
    with client.get(LAYOUT, chain(3)) as held:
        arena.overwrite(chain(3)[1])
        assert held.intact() == held.intact() == 1
    assert client.misses == {"generation": 1}
    buffers = [bytearray(4000) for _ in range(3)]
    assert client.get_into(LAYOUT, chain(3), buffers) == Restored(1, (Tier.DRAM,))
    assert client.misses == {"generation": 2}


def test_blocks_of_two_pages_are_whole_only_with_both(client: Client) -> None:
    first, second = chain(2)
    both = [PageId(0, 0), PageId(0, 1)]
    pages = [Page(first, b"a0", both[0]), Page(first, b"a1", both[1]), Page(second, b"b0", both[0])]
    client.put(LAYOUT, None, pages)
    assert client.lookup(LAYOUT, chain(2), pages=both).whole_blocks == 1
    with client.get(LAYOUT, chain(2), pages=both) as held:
        assert [bytes(view) for view in held.views] == [b"a0", b"a1"]


def test_long_put_goes_in_parts_with_chained_parents(agent: ScriptedAgent, arena: ArenaScript) -> None:
    hashes = chain(5)
    with Client(agent.path, staging_bytes=65536, deadline_s=5) as client:
        assert client.put(LAYOUT, b"p" * 16, blocks(5)) == Stored(5, 0, Reach.DRAM)
        assert client.lookup(LAYOUT, hashes).whole_blocks == 5
    assert [(put.parent, [page.hash for page in put.pages]) for put in arena.puts] == [
        (b"p" * 16, hashes[:2]),
        (hashes[1], hashes[2:4]),
        (hashes[3], hashes[4:]),
    ]


def test_staging_is_sealed_against_resizing(client: Client, arena: ArenaScript) -> None:
    client.put(LAYOUT, None, blocks(1))
    assert arena.staged_seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def test_page_of_another_size_than_its_buffer_is_a_miss(client: Client) -> None:
    client.put(LAYOUT, None, blocks(2))
    assert client.get_into(LAYOUT, chain(2), [bytearray(4000), bytearray(3999)]).blocks == 1
    assert client.misses == {"size_mismatch": 1}


def test_holds_are_released_once_each(client: Client, arena: ArenaScript) -> None:
    client.put(LAYOUT, None, blocks(1))
    held = client.get(LAYOUT, chain(1))
    other = client.get(LAYOUT, chain(1))
    held.release()
    held.release()
    other.release()
    client.lookup(LAYOUT, chain(1))
    assert arena.releases == [1, 2]


def test_views_outlive_release_and_close(client: Client) -> None:
    client.put(LAYOUT, None, blocks(1, salt=9))
    held = client.get(LAYOUT, chain(1))
    client.close()
    held.release()
    assert bytes(held.views[0]) == b"\x09" * 4000
    assert client.lookup(LAYOUT, chain(1)) == Found()
    assert client.misses == {"client_closed": 1}


def test_chunk_id_of_a_replaced_store_means_its_new_file(arena: ArenaScript, agent: ScriptedAgent) -> None:
    with Client(agent.path, deadline_s=5) as client:
        client.put(LAYOUT, None, blocks(1, salt=1))
        old = client.get(LAYOUT, chain(1))
        agent.stop()
        arena.new_chunk(1)
        with ScriptedAgent(agent.path, arena):
            client.put(LAYOUT, None, blocks(1, salt=2))
            with client.get(LAYOUT, chain(1)) as held:
                assert bytes(held.views[0]) == b"\x02" * 4000
        assert bytes(old.views[0]) == b"\x01" * 4000


def test_threads_share_one_client(agent: ScriptedAgent, client: Client) -> None:
    client.put(LAYOUT, None, blocks(8))
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(60):
            count = (seed + turn) % 8 + 1
            buffers = [bytearray(4000) for _ in range(count)]
            restored = client.get_into(LAYOUT, chain(count), buffers, deadline_s=20)
            if restored.blocks != count or any(set(b) != {i} for i, b in enumerate(buffers)):
                wrong.append(f"{restored} of {count}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not client.misses
    assert agent.connections <= 8


def test_idle_connection_serves_the_next_call(agent: ScriptedAgent, client: Client) -> None:
    for _ in range(5):
        client.lookup(LAYOUT, chain(1))
    assert agent.connections == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_child_connects_anew(agent: ScriptedAgent, arena: ArenaScript) -> None:
    client = Client(agent.path, deadline_s=5)
    client.put(LAYOUT, None, blocks(2))
    held = client.get(LAYOUT, chain(2))
    context = multiprocessing.get_context("fork")
    outcome = context.Queue()

    def child() -> None:
        held.release()
        stored = client.put(LAYOUT, chain(2)[1], [Page(b"c" * 32, b"child")])
        outcome.put((client.lookup(LAYOUT, chain(2)).whole_blocks, stored.stored_pages, dict(client.misses)))

    process = context.Process(target=child)
    process.start()
    assert outcome.get(timeout=20) == (2, 1, {})
    process.join(10)
    assert client.lookup(LAYOUT, chain(2)) == Found(2, 2, 2)
    assert agent.connections == 2
    assert arena.releases == []
    outcome.close()
    client.close()


def test_client_takes_its_socket_from_the_environment(agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTIER_SOCKET", str(agent.path))
    with Client(deadline_s=5) as client:
        assert client.put(LAYOUT, None, blocks(1)).stored_pages == 1


def test_client_reaches_a_socket_whose_path_is_too_long(tmp_path: Path, arena: ArenaScript) -> None:
    short = tmp_path / "short"
    short.mkdir()
    long = tmp_path / ("d" * 120)
    with ScriptedAgent(short / "agent.sock", arena):
        short.rename(long)
        with Client(long / "agent.sock", deadline_s=5) as client:
            assert client.put(LAYOUT, None, blocks(1)).stored_pages == 1


def test_no_descriptor_leaks_over_many_calls(agent: ScriptedAgent) -> None:
    before = open_descriptors()
    with Client(agent.path, deadline_s=5) as client:
        for _ in range(20):
            client.put(LAYOUT, None, blocks(1))
            client.get(LAYOUT, chain(1)).release()
    agent.stop()
    assert open_descriptors() <= before
