"""Which pages a prefix needs, and where a client believes that they lie."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import struct
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from kvtier_client import Client, PageId, Tier
from kvtier_client.arena import ChunkMappings
from kvtier_client.copying import PARALLEL_BYTES, PIECE_BYTES, Copier, Copies, Pace
from kvtier_client.failures import Failure
from kvtier_client.memory import address_of, aligned_buffer, aligned_pages
from kvtier_client.placed import ChunkTable
from kvtier_client.protocol.messages import MAX_BLOCKS, Chunks, Lookup, LookupReply
from kvtier_client.protocol.places import (
    PagePlace,
    blocks_kept,
    most_blocks,
    needed_pages,
    needs_page,
    pack_places,
    place_count,
    unpack_places,
)

from tests.unit.client.peer import LAYOUT, Link, ScriptedAgent, chain

FULL, SHARD, WINDOW, STATE = PageId(0, 0), PageId(0, 1), PageId(1, 0, 3), PageId(2, 0, 1)
KINDS = [(FULL,), (FULL, SHARD), (FULL, WINDOW), (WINDOW,), (FULL, WINDOW, STATE), (STATE, FULL, SHARD)]


@pytest.mark.parametrize("pages", KINDS)
def test_count_is_that_of_the_needed_pages(pages: tuple[PageId, ...]) -> None:
    for blocks in range(7):
        needed = list(needed_pages(blocks, pages))
        assert place_count(blocks, pages) == len(needed)
        assert needed == sorted(needed, key=lambda one: (one[0], pages.index(one[1])))
        assert needed == [(b, p) for b in range(blocks) for p in pages if needs_page(p, b, blocks)]


def test_trailing_page_is_needed_by_the_last_blocks_only() -> None:
    assert [block for block in range(10) if needs_page(WINDOW, block, 10)] == [7, 8, 9]
    assert [block for block in range(2) if needs_page(WINDOW, block, 2)] == [0, 1]
    assert all(needs_page(FULL, block, 10) for block in range(10))


@pytest.mark.parametrize("pages", KINDS)
def test_most_blocks_are_as_many_as_have_room(pages: tuple[PageId, ...]) -> None:
    most = most_blocks(pages)
    assert place_count(most, pages) <= MAX_BLOCKS
    assert most == MAX_BLOCKS or place_count(most + 1, pages) > MAX_BLOCKS


@pytest.mark.parametrize("pages", KINDS)
def test_kept_blocks_have_all_that_they_need_among_the_good(pages: tuple[PageId, ...]) -> None:
    for blocks in range(7):
        needed = list(needed_pages(blocks, pages))
        for good in range(len(needed) + 1):
            possible = [n for n in range(blocks + 1) if set(needed_pages(n, pages)) <= set(needed[:good])]
            assert blocks_kept(blocks, pages, good) == max(possible), (blocks, good)


def test_packed_places_come_back() -> None:
    places = [PagePlace(1 << 63, 4096, 1 << 31, 8, (1 << 64) - 1, 1), PagePlace(0, 0, 1, 0, 1, 0)]
    assert list(unpack_places(pack_places(places))) == places
    with pytest.raises(struct.error):
        list(unpack_places(pack_places(places)[:-1]))


def chunk_file(size: int, content: bytes = b"") -> int:
    descriptor = os.memfd_create("chunk")
    os.posix_fallocate(descriptor, 0, size)
    os.pwrite(descriptor, content, 0)
    return descriptor


def table(chunks: dict[int, bytes], sizes: dict[int, int] | None = None) -> ChunkTable:
    made = ChunkTable()
    mappings = ChunkMappings()
    for number, content in chunks.items():
        descriptor = chunk_file(sizes[number] if sizes else 8192, content)
        made.add(number, mappings.map(descriptor))
        os.close(descriptor)
    return made


def test_pages_of_several_chunks_are_found_and_checked() -> None:
    chunks = table({7: struct.pack("<QQ", 5, 6) + b"a" * 100, (1 << 64) - 1: struct.pack("<Q", 9) + b"b" * 100})
    places = [PagePlace(7, 16, 50, 0, 5, 0), PagePlace((1 << 64) - 1, 8, 100, 0, 9, 1), PagePlace(7, 66, 50, 8, 4, 9)]
    placed = chunks.locate(pack_places(places), 3)
    assert [bytes(view) for view in placed.views()] == [b"a" * 50, b"b" * 100, b"a" * 50]
    assert [ctypes.string_at(*span) for span in zip(placed.addresses(), placed.sizes, strict=True)] == [
        bytes(view) for view in placed.views()
    ]
    assert placed.tiers == (Tier.DRAM, Tier.NVME, Tier.NVME)
    assert (placed.good(3), placed.good(2), placed.good(1)) == (2, 2, 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("places_beside", [1, 300])
def test_random_records_never_lead_outside_a_chunk(places_beside: int, seed: int) -> None:
    """Against the obvious check of each field in unbounded integers, in chunks of two sizes."""
    rng = random.Random(seed)
    sizes = {1: 8192, 2: 12_288}
    chunks = table({1: b"", 2: b""}, sizes)
    near = [edge for size in sizes.values() for edge in (size - 8, size - 1, size, size + 1)]
    edges = [0, 1, 7, 8, 4096, *near, (1 << 32) - 1, (1 << 63), (1 << 64) - 8, (1 << 64) - 1]
    right = 0
    for _ in range(3000):
        place = PagePlace(
            rng.choice([1, 1, 2, 3]),
            rng.choice(edges),
            rng.choice([e for e in edges if e < 1 << 32]),
            rng.choice(edges),
            1,
            rng.choice([0, 1]),
        )
        size = sizes.get(place.chunk, 0)
        good = (
            place.size > 0
            and place.offset + place.size <= size
            and place.generation_offset % 8 == 0
            and place.generation_offset + 8 <= size
        )
        right += good
        try:
            chunks.locate(pack_places([*[PagePlace(1, 0, 1, 0, 1, 0)] * places_beside, place]), places_beside + 1)
        except Failure as failure:
            assert failure.cause == "protocol"
            assert not good, place
        else:
            assert good, place
    assert right > 20


def test_chunk_that_is_gone_is_not_found_any_more() -> None:
    chunks = table({1: b"x", 2: b"y"})
    record = pack_places([PagePlace(1, 0, 1, 0, 1, 0)])
    assert len(chunks.locate(record, 1)) == 1
    chunks.forget([1, 99])
    with pytest.raises(Failure, match="did not send"):
        chunks.locate(record, 1)
    chunks.forget([2])
    with pytest.raises(Failure, match="did not send"):
        chunks.locate(record, 1)


def resident_pages(address: int, size: int) -> int:
    """How many pages of a mapping have an entry in this process's page tables."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(size // mmap.PAGESIZE * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum())


def test_new_chunk_is_populated_before_anyone_reads_it() -> None:
    woken = threading.Event()
    mappings = ChunkMappings(woken.set)
    descriptor = chunk_file(1 << 20, b"x" * (1 << 20))
    chunk = mappings.map(descriptor)
    assert mappings.map(descriptor) is chunk
    os.close(descriptor)
    assert woken.is_set()
    assert resident_pages(chunk.address, chunk.size) < 256
    mappings.populate()
    assert resident_pages(chunk.address, chunk.size) == 256


def test_chunk_with_holes_is_not_given_memory_by_its_readers() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(1 << 20)
        mappings = ChunkMappings()
        chunk = mappings.map(file.fileno())
        mappings.populate()
        assert os.fstat(file.fileno()).st_blocks == 0
        assert chunk.size == 1 << 20


def test_idle_client_maps_chunks_when_they_are_announced(tmp_path: Path) -> None:
    """So that a get finds them mapped, and an agent's descriptors do not wait in a socket for ever."""
    descriptor = chunk_file(4096, b"x")

    def script(link: Link) -> None:
        link.welcome()
        ask = link.receive()
        assert isinstance(ask, Lookup)
        link.send(LookupReply(ask.request_id, 0, 0, 0))
        time.sleep(0.05)
        link.send(Chunks([1]), [descriptor])
        link.receive()

    inode = os.fstat(descriptor).st_ino
    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, Client(agent.path, deadline_s=3) as client:
        client.lookup(LAYOUT, chain(1))
        deadline = time.monotonic() + 5
        while f" {inode} " not in Path("/proc/self/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.lookup(LAYOUT, []) is not None
    os.close(descriptor)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_threads_of_a_client_end_with_it(tmp_path: Path) -> None:
    def script(link: Link) -> None:
        link.welcome()
        while True:
            ask = link.receive()
            link.send(LookupReply(ask.request_id, 0, 0, 0))

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent:
        client = Client(agent.path, deadline_s=3)
        client.lookup(LAYOUT, chain(1))
        assert attendants() == 1
        client.close()
        forgotten = Client(agent.path, deadline_s=3)
        forgotten.lookup(LAYOUT, chain(1))
        del forgotten
        deadline = time.monotonic() + 5
        while attendants():
            assert time.monotonic() < deadline
            gc.collect()
            time.sleep(0.02)


def attendants() -> int:
    return sum(thread.name == "kvtier-attendant" for thread in threading.enumerate())


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 4096, PIECE_BYTES + 1, PARALLEL_BYTES + 12345])
def test_copies_are_whole_with_any_number_of_threads(helpers: int, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, (3, size), np.uint8)
    target = aligned_pages(3, size)
    moves = [(target.ctypes.data + i * target.strides[0], source.ctypes.data + i * size, size) for i in range(3)]
    copier = Copier(helpers)
    copier.copy(Copies(moves, (source, target)))
    copier.close()
    assert (source == target).all()


def test_copies_in_every_thread_of_the_copier_wait_for_no_helper() -> None:
    copier, meeting = Copier(helpers=1), threading.Barrier(2)

    class EndingTogether(Copies):
        ended = False

        def run(self) -> None:
            super().run()
            if not self.ended:  # not a helper, which finds a thread only after that
                self.ended = True
                meeting.wait(10)

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        meeting.wait(10)
        copier.copy(EndingTogether([(target.ctypes.data, source.ctypes.data, source.size)], (target, source)))

    source, target = np.ones((2, PARALLEL_BYTES), np.uint8), np.zeros((2, PARALLEL_BYTES), np.uint8)
    for copying in [copier.start(partial(copy, *rows)) for rows in zip(target, source, strict=True)]:
        copying.result(timeout=10)
    copier.close()
    assert target.all()


def test_helpers_are_used_where_they_are_faster_and_tried_again_now_and_then() -> None:
    for fast_with_helpers in (True, False):
        pace = Pace()
        used = 0
        for _ in range(100):
            helped = pace.with_helpers()
            used += helped
            pace.took(helped, 1 << 20, 0.001 if helped == fast_with_helpers else 0.002)
        assert used > 90 if fast_with_helpers else 3 < used < 10
    for _ in range(100):  # the cores are idle again
        helped = pace.with_helpers()
        pace.took(helped, 1 << 20, 0.001 if helped else 0.002)
    assert pace.with_helpers()


def test_stopped_copies_take_no_further_move() -> None:
    source, target = np.ones(100, np.uint8), np.zeros(100, np.uint8)
    copies = Copies([(target.ctypes.data, source.ctypes.data, 100)], (source, target))
    copies.stop()
    copies.run()
    assert not target.any()


def test_aligned_memory_begins_at_pages_and_is_there() -> None:
    pages = aligned_pages(3, 5000)
    assert pages.shape == (3, 5000)
    assert [pages[i].ctypes.data % 4096 for i in range(3)] == [0, 0, 0]
    assert not pages.any()
    pages[:] = 1
    buffer = aligned_buffer(100)
    assert (buffer.shape, address_of(buffer.data) % 4096) == ((100,), 0)
    large = aligned_buffer(8 << 20)
    assert resident_pages(large.ctypes.data, 8 << 20) == 2048
    assert aligned_pages(0, 8).shape == (0, 8)
    for count, size in ((-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one byte"):
            aligned_pages(count, size)
