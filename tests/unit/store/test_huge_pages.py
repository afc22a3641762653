"""A store whose arena lies on huge pages, and one that should and does not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.store.conftest import MakeStore
from tests.unit.store.process import WAIT_S, StoreProcess
from tests.unit.store.rawclient import chain, data_of, hashes_of

HUGE = 2 << 20
PAGES = 24
COUNT = Path("/proc/sys/vm/nr_hugepages")


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Path]:
    """A hugetlbfs of 48 MiB, in place of the tests' usual arena."""
    before = int(COUNT.read_text())
    folder = tmp_path / "huge"
    folder.mkdir()
    try:
        COUNT.write_text(str(before + PAGES))
        if int(COUNT.read_text()) < before + PAGES:
            pytest.skip("the machine has no memory for huge pages left")
        subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M", "none", str(folder)], check=True)
    except PermissionError:
        pytest.skip("making huge pages takes root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        COUNT.write_text(str(before))


def on_huge_pages(make_store: MakeStore) -> StoreProcess:
    store = make_store()
    del store.config["nvme"]
    store.config["arena"] = {"path": str(store.arena), "capacity": "40Mi", "slotAlignment": HUGE}
    store.config["pools"] = [store.pool_config(dramQuota="40Mi")]
    return store


def test_chain_in_huge_pages_is_served_and_adopted_and_deleted(make_store: MakeStore) -> None:
    store = on_huge_pages(make_store)
    blocks, other = chain("a", 60, size=50_000), chain("b", 20)
    with store.start().connect() as client:
        client.put(None, blocks)
        client.put(None, other)
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
        client.delete(hashes_of(other))
    assert {chunk.stat().st_size % HUGE for chunk in store.chunks()} == {0}
    store.kill()
    with store.start().connect() as client:
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
        assert client.lookup(hashes_of(other)).whole_blocks == 0


def test_reader_of_a_chunk_in_huge_pages_that_is_given_back_sees_misses(make_store: MakeStore) -> None:
    """A hole there would be filled from huge pages that may not be left, and the reader killed."""
    store = on_huge_pages(make_store)
    blocks = chain("a", 60)
    with store.start().connect() as client:
        client.put(None, blocks)
        held = client.get(hashes_of(blocks))
        client.release(held)
        for number in range(20):
            client.put(None, chain(f"filler-{number}", 60, size=100_000))
        assert client.lookup(hashes_of(blocks)).whole_blocks == 0
        copies = [client.read(place) for place in held.places]
        assert all(copy in (None, data) for copy, data in zip(copies, data_of(blocks), strict=True))
        assert None in copies


def test_store_alone_without_the_huge_pages_it_names_says_so_and_goes_on(make_store: MakeStore, tmp_path: Path) -> None:
    store = on_huge_pages(make_store)
    plain = tmp_path / "plain"
    plain.mkdir()
    store.arena = plain
    store.config["arena"]["path"] = str(plain)
    with store.start().connect() as client:
        blocks = chain("a", 5)
        client.put(None, blocks)
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)
    assert "event=huge_pages.missing" in store.log_text()
    assert f"the TierClass names huge pages of {HUGE}" in store.log_text()


def test_store_in_a_cluster_without_the_huge_pages_it_names_does_not_start(
    make_store: MakeStore, tmp_path: Path
) -> None:
    store = on_huge_pages(make_store)
    plain = tmp_path / "plain"
    plain.mkdir()
    store.config["arena"]["path"] = str(plain)
    del store.config["pools"]
    store.config |= {"nodeSocket": str(tmp_path / "node.sock"), "tierClass": "huge"}
    store.spawn()
    assert store.process is not None
    assert store.process.wait(WAIT_S) == 1
    assert "mount a hugetlbfs there with pagesize=2097152" in store.log_text()
