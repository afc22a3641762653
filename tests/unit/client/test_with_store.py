"""The client and the real store: both tiers, restarts, threads, and an arena that a client cannot change."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from kvtier_client import WHOLE_BLOCK, Client, Found, Page, PageId, Reach, Stored, Tier, aligned_pages
from kvtier_client.aio import AsyncClient

from tests.unit.client.peer import LAYOUT, chain
from tests.unit.client.real_store import RealStore, can_bind_mount, real_store

BLOCK_BYTES = 256 << 10


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStore]:
    with real_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def client(store: RealStore) -> Iterator[Client]:
    with Client(store.socket, deadline_s=20) as client:
        yield client


def content(value: bytes) -> bytes:
    """A block's bytes, which follow from its hash."""
    return (value * (BLOCK_BYTES // len(value) + 1))[:BLOCK_BYTES]


def blocks(hashes: list[bytes]) -> list[Page]:
    return [Page(value, content(value)) for value in hashes]


def restored_exactly(client: Client, hashes: list[bytes], tier: Tier) -> bool:
    """Whether all come back as they were put, from `tier`: all of them from DRAM, or most of them from below.

    Which pages leave DRAM first is the policy's affair.
    """
    buffers = [bytearray(BLOCK_BYTES) for _ in hashes]
    restored = client.get_into(LAYOUT, hashes, buffers)
    assert restored.blocks == len(hashes), (restored, client.misses)
    assert restored.tiers.count(tier) > len(hashes) // 2
    assert tier is Tier.NVME or set(restored.tiers) == {tier}
    return [bytes(buffer) for buffer in buffers] == [content(value) for value in hashes]


def test_blocks_survive_eviction_from_dram_on_nvme(client: Client) -> None:
    first = chain(40, salt=1)
    assert client.put(LAYOUT, None, blocks(first), reach=Reach.FLUSHED) == Stored(40, 0, Reach.FLUSHED)
    assert client.put(LAYOUT, None, blocks(first)).known_pages == 40
    assert restored_exactly(client, first, Tier.DRAM)
    for salt in range(2, 14):
        assert client.put(LAYOUT, None, blocks(chain(40, salt))).stored_pages == 40
    assert client.lookup(LAYOUT, first) == Found(40, 0, 40)
    assert restored_exactly(client, first, Tier.NVME)
    assert restored_exactly(client, first, Tier.DRAM)
    assert not client.misses


def test_put_without_its_parent_is_refused_and_counted(client: Client) -> None:
    assert client.put(LAYOUT, b"absent!!" * 4, blocks(chain(1, salt=20))) == Stored()
    assert client.misses == {"refused:parent_absent": 1}
    assert client.put(LAYOUT, None, blocks(chain(1, salt=20))).stored_pages == 1


def test_two_clients_see_each_others_blocks_and_layouts_stay_apart(store: RealStore, client: Client) -> None:
    client.put(LAYOUT, None, blocks(chain(3, salt=21)))
    with Client(store.socket, deadline_s=20) as other:
        assert restored_exactly(other, chain(3, salt=21), Tier.DRAM)
        assert other.lookup(bytes(32), chain(3, salt=21)) == Found()


def test_threads_write_and_read_through_one_client(client: Client) -> None:
    wrong: list[str] = []

    def work(salt: int) -> None:
        hashes = chain(8, salt)
        if client.put(LAYOUT, None, blocks(hashes)).stored_pages != 8:
            wrong.append(f"{salt}: put")
        right = [restored_exactly(client, hashes[:count], Tier.DRAM) for count in (8, 3, 5)]
        if not all(right):
            wrong.append(f"{salt}: {right}")

    threads = [threading.Thread(target=work, args=(salt,)) for salt in range(30, 38)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not client.misses


def pushed_out_of_dram(client: Client, hashes: list[bytes], pages: tuple[PageId, ...] = WHOLE_BLOCK) -> bool:
    """Store other chains until the first of these blocks is not in DRAM any more."""
    for _ in range(40):
        if not client.lookup(LAYOUT, hashes, pages=pages).dram_blocks:
            return True
        filler = [Page(value, content(value)) for value in (os.urandom(32) for _ in range(40))]
        client.put(LAYOUT, None, filler, deadline_s=30)
    return False


def test_prefetch_brings_blocks_up_without_anyone_waiting(client: Client) -> None:
    for salt, start in ((50, client.prefetch), (51, lambda *ask: client.lookup(*ask, prefetch=True).whole_blocks)):
        hashes = chain(20, salt)
        assert client.put(LAYOUT, None, blocks(hashes), reach=Reach.FLUSHED).reached is Reach.FLUSHED
        assert pushed_out_of_dram(client, hashes)
        assert start(LAYOUT, hashes) == 20
        deadline = time.monotonic() + 20
        while client.lookup(LAYOUT, hashes).dram_blocks < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert restored_exactly(client, hashes, Tier.DRAM)


def test_pages_from_nvme_come_in_parts_and_in_place(client: Client) -> None:
    hashes = chain(40, salt=52)
    assert client.put(LAYOUT, None, blocks(hashes), reach=Reach.FLUSHED).reached is Reach.FLUSHED
    assert pushed_out_of_dram(client, hashes)
    wrong: list[int] = []
    parts: list[int] = []

    def visit(first_block: int, views: list[memoryview]) -> None:
        parts.append(first_block)
        wrong.extend(n for n, view in enumerate(views, first_block) if bytes(view) != content(hashes[n]))

    restored = client.read(LAYOUT, hashes, visit)
    assert (restored.blocks, restored.tiers.count(Tier.NVME) > 20) == (40, True), (restored, client.misses)
    assert not wrong
    assert parts == sorted(parts)
    assert not client.misses


def test_hold_of_one_process_is_read_by_another(store: RealStore, client: Client) -> None:
    hashes = chain(5, salt=53)
    client.put(LAYOUT, None, blocks(hashes))
    with client.hold(LAYOUT, hashes) as hold:
        assert hold.blocks == 5
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(store.socket), str(hold.id), *[value.hex() for value in hashes]],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.split() == [str(hold.id), "5", "5", sha256(b"".join(map(content, hashes))).hexdigest()], done


WORKER = """
import sys
from hashlib import sha256
from kvtier_client import Client
with Client(sys.argv[1], deadline_s=20) as client:
    held = client.get(bytes(range(32)), [bytes.fromhex(value) for value in sys.argv[3:]], hold=int(sys.argv[2]))
    digest = sha256(b"".join(held.views)).hexdigest()
    print(held.hold_id, held.blocks, held.intact(), digest)
"""


def test_deleted_blocks_are_gone_with_all_below_them(client: Client) -> None:
    hashes = chain(6, salt=54)
    client.put(LAYOUT, None, blocks(hashes), reach=Reach.FLUSHED)
    assert client.delete(LAYOUT, [hashes[2], b"absent!!" * 4])
    assert client.lookup(LAYOUT, hashes) == Found(2, 2, 2)
    assert restored_exactly(client, hashes[:2], Tier.DRAM)
    assert client.put(LAYOUT, hashes[1], blocks(hashes[2:])).stored_pages == 4
    assert restored_exactly(client, hashes, Tier.DRAM)


def test_pinned_blocks_stay_in_dram(client: Client) -> None:
    kept, other = chain(8, salt=55), chain(8, salt=56)
    for hashes in (kept, other):
        client.put(LAYOUT, None, blocks(hashes), reach=Reach.FLUSHED)
    assert client.pin(LAYOUT, kept, 600) == 8
    assert pushed_out_of_dram(client, other)
    assert client.lookup(LAYOUT, kept) == Found(8, 8, 8)
    assert client.pin(LAYOUT, kept, 0) == 8
    assert pushed_out_of_dram(client, kept)


def test_engine_with_a_window_and_a_state_restores_what_it_needs(client: Client) -> None:
    """Full, trailing(2) and trailing(1) groups: each turn puts its blocks, and of the state only the last."""
    layout = b"w" * 32
    full, window, state = PageId(0), PageId(1, 0, 2), PageId(2, 0, 1)
    pages = (full, window, state)
    hashes = chain(6, salt=57)

    def data(value: bytes, page: PageId) -> bytes:
        return (value + bytes([page.group])) * 1000

    for begin, end in ((0, 4), (4, 6)):
        needed = [(n, page) for n in range(begin, end) for page in (full, window)] + [(end - 1, state)]
        turn = [Page(hashes[n], data(hashes[n], page), page) for n, page in sorted(needed, key=lambda one: one[0])]
        assert client.put(layout, hashes[begin - 1] if begin else None, turn).stored_pages == len(turn)
    assert client.lookup(layout, hashes, pages=pages) == Found(6, 6, 6)
    assert client.lookup(layout, hashes[:5], pages=pages).whole_blocks == 4
    with client.get(layout, hashes, pages=pages) as held:
        assert held.keys == [(n, full) for n in range(4)] + [(4, full), (4, window), (5, full), (5, window), (5, state)]
        assert [bytes(view) for view in held.views] == [data(hashes[n], page) for n, page in held.keys]
        assert held.intact() == 6
    buffers = [bytearray(33_000) for _ in range(18)]
    assert client.get_into(layout, hashes, buffers, pages=pages).blocks == 6
    assert bytes(buffers[17]) == data(hashes[5], state)
    assert not client.misses


def test_put_from_staging_is_stored_as_it_was_filled(client: Client) -> None:
    hashes = chain(12, salt=58)
    with client.staging(12 * BLOCK_BYTES) as memory:
        rows = [memory[n * BLOCK_BYTES : (n + 1) * BLOCK_BYTES] for n in range(12)]
        for value, row in zip(hashes, rows, strict=True):
            row[:] = content(value)
        pages = [Page(value, row) for value, row in zip(hashes, rows, strict=True)]
        assert client.put(LAYOUT, None, pages) == Stored(12, 0, Reach.DRAM)
    assert restored_exactly(client, hashes, Tier.DRAM)


async def test_asyncio_face_stores_and_restores(store: RealStore) -> None:
    async with AsyncClient(store.socket, deadline_s=20) as client:

        async def work(salt: int) -> bool:
            hashes = chain(16, salt)
            buffers = aligned_pages(16, BLOCK_BYTES)
            stored = await client.put(LAYOUT, None, blocks(hashes))
            restored = await client.get_into(LAYOUT, hashes, buffers)
            return (stored.stored_pages, restored.blocks) == (16, 16) and all(
                bytes(row) == content(value) for row, value in zip(buffers, hashes, strict=True)
            )

        assert all(await asyncio.gather(*(work(salt) for salt in range(60, 66))))
        assert not client.misses


def test_killed_store_costs_one_miss_and_its_successor_serves_from_dram(tmp_path: Path) -> None:
    with real_store(tmp_path) as store, Client(store.socket, deadline_s=20) as client:
        hashes = chain(10)
        client.put(LAYOUT, None, blocks(hashes))
        held = client.get(LAYOUT, hashes)
        store.kill()
        began = time.monotonic()
        assert client.lookup(LAYOUT, hashes) == Found()
        assert time.monotonic() - began < 2
        assert [bytes(view) for view in held.views] == [content(value) for value in hashes]
        assert held.intact() == 10
        store.start()
        deadline = time.monotonic() + 10
        while client.lookup(LAYOUT, hashes) != Found(10, 10, 10):
            assert time.monotonic() < deadline, client.misses
            time.sleep(0.05)
        assert restored_exactly(client, hashes, Tier.DRAM)


ATTACK = """
import ctypes, errno, mmap, os, socket, sys
from pathlib import Path
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.messages import Get, GetReply, HashList, Hello, ToClient

def refused(what, attack):
    try:
        attack()
    except OSError as error:
        print(what, errno.errorcode[error.errno])
    else:
        print(what, "SUCCEEDED")

sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
decoder, answers, descriptors = FrameDecoder(ToClient), [], []
sock.sendall(encode_frame(Hello((1, 1))))
request = Get(1, bytes(range(32)), HashList.of([bytes.fromhex(sys.argv[2])]), 5000)
sock.sendall(encode_frame(request))
while not any(isinstance(answer, GetReply) for answer in answers):
    data, received, _, _ = socket.recv_fds(sock, 65536, 16)
    descriptors += received
    answers += decoder.feed(data)
assert answers[-1].blocks == 1, answers
chunk, = descriptors
path = f"/proc/self/fd/{chunk}"
refused("map", lambda: mmap.mmap(chunk, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
refused("write", lambda: os.pwrite(chunk, b"x", 0))
refused("reopen", lambda: os.open(path, os.O_RDWR))
refused("truncate", lambda: os.ftruncate(chunk, 0))
refused("truncate-path", lambda: os.truncate(path, 0))
refused("chmod", lambda: os.chmod(path, 0o777))
refused("fchmod", lambda: os.fchmod(chunk, 0o777))
refused("link", lambda: os.link(path, sys.argv[3], follow_symlinks=True))
memory = mmap.mmap(chunk, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
libc = ctypes.CDLL(None, use_errno=True)
address = ctypes.c_void_p(0)
def protect():
    from kvtier_client.memory import map_readonly
    import numpy as np
    view = map_readonly(chunk, 4096)
    start = np.frombuffer(view, np.uint8).ctypes.data
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(4096), 3):
        raise OSError(ctypes.get_errno(), "mprotect")
refused("mprotect", protect)
"""
"""A client that means harm, with what the store sent it."""


@pytest.mark.skipif(not can_bind_mount(), reason="a read-only bind mount needs root with CAP_SYS_ADMIN")
def test_client_that_maps_the_arena_cannot_write_it_even_as_root(tmp_path: Path) -> None:
    value = chain(1)[0]
    with real_store(tmp_path, read_only_mount=True) as store:
        with Client(store.socket, deadline_s=20) as client:
            assert client.put(LAYOUT, None, blocks([value])).stored_pages == 1
        done = subprocess.run(
            [sys.executable, "-c", ATTACK, str(store.socket), value.hex(), str(tmp_path / "link")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcomes = dict(line.split() for line in done.stdout.splitlines())
        assert outcomes == {
            "map": "EACCES",
            "write": "EBADF",
            "reopen": "EROFS",
            "truncate": "EINVAL",
            "truncate-path": "EROFS",
            "chmod": "EROFS",
            "fchmod": "EROFS",
            "link": "EXDEV",
            "mprotect": "EACCES",
        }
        with Client(store.socket, deadline_s=20) as client:
            assert restored_exactly(client, [value], Tier.DRAM)
