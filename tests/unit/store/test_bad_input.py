"""Whatever a client sends is answered or ends its connection, and harms nobody else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from kvtier_client.protocol import messages as m
from kvtier_client.protocol.frames import MAX_FRAME_BYTES, encode_frame

from tests.unit.store.conftest import MakeStore
from tests.unit.store.process import StoreProcess
from tests.unit.store.rawclient import LAYOUT, RawClient, chain, data_of, hashes_of, sealed_memfd

HASH = b"h" * 32
OTHER_HASHES = m.HashList.of([b"h" * 16])
HASHES = m.HashList.of([HASH])
PAGE = m.PutPage(HASH, 0, 100)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """One store for all: what one test sends must not harm the next."""
    with tempfile.TemporaryDirectory(prefix="kvtier-test-", dir="/dev/shm") as arena:
        store = StoreProcess(tmp_path_factory.mktemp("store"), Path(arena))
        yield store.start()
        assert "Traceback" not in store.log_text()
        assert "event=task.failed" not in store.log_text()
        store.close()


@pytest.fixture(autouse=True)
def check_that_others_are_served(store: StoreProcess) -> Iterator[None]:
    yield
    with store.connect() as client:
        blocks = chain("witness", 3)
        assert client.put(None, blocks).reached == m.Reach.DRAM
        assert client.read_all(hashes_of(blocks)) == data_of(blocks)


@contextlib.contextmanager
def lingering() -> Iterator[socket.socket]:
    """A socket whose last close takes an hour, or until its peer is gone."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        peer, _ = server.accept()
        with peer:
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(bytes(1 << 16))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
            yield sock


def send_as_staging(client: RawClient, sock: socket.socket) -> None:
    client.send(m.Stage(1, 4096), [sock.fileno()])


def send_inside_another(client: RawClient, sock: socket.socket) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        socket.send_fds(inner, [b"x"], [sock.fileno()])
        send_as_staging(client, outer)


def send_many(client: RawClient, sock: socket.socket) -> None:
    socket.send_fds(client.sock, [b"x"], [sock.fileno()] * 253)


def send_what_is_not_read(client: RawClient, sock: socket.socket) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    client.sock.sendall(bytes(100_000))  # malformed, and longer than what is read at a time
    socket.send_fds(client.sock, [b"x"], [sock.fileno()])


@pytest.mark.parametrize("send", [send_as_staging, send_inside_another, send_many, send_what_is_not_read])
def test_descriptor_whose_close_lasts_keeps_nobody_waiting(
    store: StoreProcess, send: Callable[[RawClient, socket.socket], None]
) -> None:
    assert store.process is not None
    with lingering() as sock, store.connect() as client:
        store.process.send_signal(signal.SIGSTOP)
        send(client, sock)
        sock.close()  # the store has the last one now
        store.process.send_signal(signal.SIGCONT)
        client.receive()
        with store.connect() as other:
            assert other.lookup([HASH]).whole_blocks == 0


def expect_refusal(reply: object, code: m.RefusalCode, words: str) -> None:
    assert isinstance(reply, m.Refused), reply
    assert (reply.code, words in reply.message) == (code, True), reply


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack("<I", 5) + b"\xc1\xc1\xc1\xc1\xc1", id="not-messagepack"),
        pytest.param(struct.pack("<I", MAX_FRAME_BYTES + 1), id="too-long"),
        pytest.param(struct.pack("<I", 0), id="empty"),
        pytest.param(encode_frame(m.Done(1)), id="a-message-for-clients"),
        pytest.param(struct.pack("<I", 1) + b"\x01", id="a-number"),
        pytest.param(
            (lambda body: struct.pack("<I", len(body)) + body)(msgspec.msgpack.encode({"type": "lookup"})),
            id="fields-missing",
        ),
        pytest.param(
            (lambda body: struct.pack("<I", len(body)) + body)(
                msgspec.msgpack.encode({"type": "lookup", "request_id": "one", "layout": b"", "hashes": []})
            ),
            id="a-field-of-another-type",
        ),
    ],
)
def test_malformed_frame_is_refused_and_ends_the_connection(store: StoreProcess, data: bytes) -> None:
    with store.connect() as client:
        client.sock.sendall(data)
        expect_refusal(client.receive(), m.RefusalCode.MALFORMED, "")
        assert client.receive() is None


def test_request_before_the_hello_is_refused_and_ends_the_connection(store: StoreProcess) -> None:
    with RawClient(store.socket, hello=False) as client:
        client.send(m.Lookup(1, LAYOUT, HASHES))
        expect_refusal(client.receive(), m.RefusalCode.MALFORMED, "first frame has to be a hello")
        assert client.receive() is None


def test_second_hello_is_refused(store: StoreProcess) -> None:
    with store.connect() as client:
        expect_refusal(client.ask(m.Hello((1, 1))), m.RefusalCode.MALFORMED, "second hello")


@pytest.mark.parametrize("versions", [(2, 3), (0, 0), (5, 1)])
def test_client_of_other_versions_is_told_which_are_spoken(store: StoreProcess, versions: tuple[int, int]) -> None:
    with RawClient(store.socket, hello=False) as client:
        expect_refusal(client.ask(m.Hello(versions)), m.RefusalCode.VERSION, "this store 1 to 1")
        assert client.receive() is None


def test_client_of_a_newer_release_gets_the_version_that_both_speak(store: StoreProcess) -> None:
    with RawClient(store.socket, hello=False) as client:
        assert client.ask(m.Hello((1, 7), "future", ("what", "ever"))).version == 1


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (m.Lookup(5, b"short", HASHES), m.RefusalCode.MALFORMED, "the layout has 5 bytes"),
        (m.Lookup(5, LAYOUT, m.HashList.of([b"h" * 15])), m.RefusalCode.MALFORMED, "a hash has 15 bytes"),
        (m.Lookup(5, LAYOUT, m.HashList.of([b"h" * 65])), m.RefusalCode.MALFORMED, "a hash has 65 bytes"),
        (m.Lookup(5, LAYOUT, m.HashList.of([HASH] * 32_769)), m.RefusalCode.LIMIT, "at most 32768"),
        (m.Lookup(5, LAYOUT, m.HashList(0, HASH)), m.RefusalCode.MALFORMED, "a hash has 0 bytes"),
        (m.Lookup(5, LAYOUT, m.HashList(-32, HASH)), m.RefusalCode.MALFORMED, "a hash has -32 bytes"),
        (
            m.Get(5, LAYOUT, m.HashList(20, HASH), 10),
            m.RefusalCode.MALFORMED,
            "32 bytes are no whole number of hashes of 20",
        ),
        (m.Lookup(5, LAYOUT, HASHES, pages=()), m.RefusalCode.MALFORMED, "no pages are named"),
        (m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(-1, 0),)), m.RefusalCode.MALFORMED, "out of range"),
        (m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(1 << 32, 0),)), m.RefusalCode.MALFORMED, "out of range"),
        (m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(0, 1 << 16),)), m.RefusalCode.MALFORMED, "out of range"),
        (m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(0, 0, -1),)), m.RefusalCode.MALFORMED, "out of range"),
        (m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(),) * 2), m.RefusalCode.MALFORMED, "named twice"),
        (
            m.Lookup(5, LAYOUT, HASHES, pages=(m.PageId(), m.PageId(0, 0, 4))),
            m.RefusalCode.MALFORMED,
            "named twice",
        ),
        (m.Hold(5, LAYOUT, m.HashList.of([b"h" * 65]), 10), m.RefusalCode.MALFORMED, "a hash has 65 bytes"),
        (m.Prefetch(5, b"short", HASHES), m.RefusalCode.MALFORMED, "the layout has 5 bytes"),
        (m.Delete(5, LAYOUT, m.HashList.of([b"h" * 15])), m.RefusalCode.MALFORMED, "a hash has 15 bytes"),
        (m.Pin(5, LAYOUT, m.HashList.of([b"h" * 15]), 10), m.RefusalCode.MALFORMED, "a hash has 15 bytes"),
        (
            m.Get(5, LAYOUT, HASHES, 10, (m.PageId(0, 0, 4),), stream=True),
            m.RefusalCode.MALFORMED,
            "ask for it without stream",
        ),
        (
            m.Get(5, LAYOUT, m.HashList.of([HASH] * 32_768), 10, tuple(m.PageId(0, n) for n in range(3))),
            m.RefusalCode.LIMIT,
            "more than 32768 pages",
        ),
        (
            m.Lookup(5, LAYOUT, HASHES, pages=tuple(m.PageId(0, n) for n in range(1025))),
            m.RefusalCode.LIMIT,
            "1025 pages of one block",
        ),
        (
            m.Put(5, LAYOUT, None, [m.PutPage(HASH, 0, 9, m.PageId(0, n)) for n in range(1025)]),
            m.RefusalCode.LIMIT,
            "1025 pages of one block",
        ),
        (m.Put(5, LAYOUT, None, []), m.RefusalCode.MALFORMED, "no pages"),
        (m.Put(5, LAYOUT, b"p", [PAGE]), m.RefusalCode.MALFORMED, "a hash has 1 bytes"),
        (m.Put(5, LAYOUT, None, [m.PutPage(HASH, 0, 0)]), m.RefusalCode.LIMIT, "a page of 0 bytes"),
        (m.Put(5, LAYOUT, None, [m.PutPage(HASH, 0, 1 << 40)]), m.RefusalCode.LIMIT, "268435456"),
        (m.Put(5, LAYOUT, None, [m.PutPage(HASH, -1, 10)]), m.RefusalCode.BAD_STAGING, "outside the staging"),
        (m.Put(5, LAYOUT, None, [m.PutPage(HASH, 65_500, 100)]), m.RefusalCode.BAD_STAGING, "outside the staging"),
        (m.Put(5, LAYOUT, None, [PAGE, PAGE]), m.RefusalCode.MALFORMED, "a page comes twice"),
        (
            m.Put(5, LAYOUT, None, [PAGE, m.PutPage(b"i" * 32, 0, 9), PAGE]),
            m.RefusalCode.MALFORMED,
            "a block comes twice",
        ),
        (m.Put(5, LAYOUT, HASH, [PAGE]), m.RefusalCode.MALFORMED, "a block comes twice"),
    ],
)
def test_request_beyond_a_limit_is_refused_and_changes_nothing(
    store: StoreProcess, request_: m.Lookup, code: m.RefusalCode, words: str
) -> None:
    with store.connect() as client:
        client.stage(65_536)
        reply = client.ask(request_)
        expect_refusal(reply, code, words)
        assert reply.request_id == 5
        assert client.lookup([HASH]).whole_blocks == 0


@pytest.mark.parametrize(
    "request_",
    [
        m.Lookup(5, LAYOUT, OTHER_HASHES),
        m.Get(5, LAYOUT, OTHER_HASHES, 10),
        m.Hold(5, LAYOUT, OTHER_HASHES, 10),
        m.Prefetch(5, LAYOUT, OTHER_HASHES),
        m.Pin(5, LAYOUT, OTHER_HASHES, 10),
    ],
    ids=lambda it: type(it).__name__,
)
def test_hashes_of_another_length_than_the_layouts_are_refused(store: StoreProcess, request_: m.Lookup) -> None:
    with store.connect() as client:
        client.stage()
        client.put(None, [(HASH, b"page")])
        expect_refusal(client.ask(request_), m.RefusalCode.MALFORMED, "a hash of 16 bytes; this layout's have 32")
        assert client.lookup([HASH]).whole_blocks == 1


def test_report_of_what_is_no_layout_is_refused_and_ends_the_connection(store: StoreProcess) -> None:
    with store.connect() as client:
        client.send(m.Report(LAYOUT, 16, 5000.0, 0, 4096.0))
        expect_refusal(
            client.ask(m.Report(LAYOUT * 2, 16, 5000.0, 0, 4096.0)), m.RefusalCode.MALFORMED, "the layout has 64 bytes"
        )
        assert client.receive() is None


def test_put_before_a_staging_is_refused(store: StoreProcess) -> None:
    with store.connect() as client:
        expect_refusal(client.ask(m.Put(1, LAYOUT, None, [PAGE])), m.RefusalCode.BAD_STAGING, "stage memory")


def unsealed() -> int:
    return sealed_memfd(65_536, 0)


def sealed_against_growing_only() -> int:
    return sealed_memfd(65_536, fcntl.F_SEAL_GROW)


def plain_file() -> int:
    return os.open(__file__, os.O_RDONLY)


def too_small() -> int:
    return sealed_memfd(4096)


def a_socket() -> int:
    return socket.socket(socket.AF_UNIX).detach()


@pytest.mark.parametrize("make", [unsealed, sealed_against_growing_only, plain_file, too_small, a_socket])
def test_staging_that_is_not_sealed_memory_of_its_size_is_refused(store: StoreProcess, make: Callable[[], int]) -> None:
    fd = make()
    with store.connect() as client:
        reply = client.ask(m.Stage(9, 65_536), [fd])
        assert isinstance(reply, m.Refused), reply
        assert (reply.code, reply.request_id) == (m.RefusalCode.BAD_STAGING, 9)
    os.close(fd)


def test_staging_without_its_descriptor_is_refused(store: StoreProcess) -> None:
    with store.connect() as client:
        expect_refusal(client.ask(m.Stage(9, 65_536)), m.RefusalCode.BAD_STAGING, "no descriptor")


def test_refused_staging_leaves_the_earlier_one_in_use(store: StoreProcess) -> None:
    fd = unsealed()
    with store.connect() as client:
        client.stage()
        assert isinstance(client.ask(m.Stage(9, 65_536), [fd]), m.Refused)
        assert client.put(None, chain("after-refusal", 2)).stored_pages == 2
    os.close(fd)


def test_descriptors_that_no_frame_takes_end_the_connection(store: StoreProcess) -> None:
    fd = sealed_memfd(4096)
    with store.connect() as client:
        with contextlib.suppress(BrokenPipeError):
            for _ in range(3):
                client.send(m.Release(0), [fd, fd, fd])
        assert client.receive() is None
    os.close(fd)


def test_staging_as_long_as_a_sparse_file_costs_the_store_no_memory(store: StoreProcess) -> None:
    """Holes are read, not mapped: their pages would be charged to the store."""
    size = 1 << 30
    fd = sealed_memfd(size)
    with store.connect() as client:
        assert client.ask(m.Stage(1, size), [fd]) == m.Done(1)
        pages = [m.PutPage(f"hole-{n}".encode().ljust(32), n << 24, 65_536) for n in range(40)]
        assert client.ask(m.Put(2, LAYOUT, None, pages)).stored_pages == 40
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


def test_hold_of_another_id_is_not_released(store: StoreProcess) -> None:
    with store.connect() as client:
        client.put(None, chain("h", 2))
        held = client.get(hashes_of(chain("h", 2)))
        for wrong in (0, -1, held.hold_id + 1, 1 << 62):
            client.send(m.Release(wrong))
        assert client.lookup(hashes_of(chain("h", 2))).whole_blocks == 2


def test_client_that_never_reads_is_dropped_and_others_served(store: StoreProcess) -> None:
    blocks = chain("many", 1000, size=100)
    with store.connect() as client:
        client.put(None, blocks)
        try:
            client.sock.settimeout(30)
            for number in range(2000):
                client.send(m.Get(number, LAYOUT, m.HashList.of(hashes_of(blocks)), 1000))
        except OSError:
            pass
        else:
            pytest.fail("2,000 replies of 30 KB were queued for a client that does not read")


def test_client_that_closes_amid_its_requests_leaves_nothing_behind(store: StoreProcess) -> None:
    blocks = chain("leaver", 30)
    for _ in range(20):
        client = store.connect()
        client.stage()
        client.send(m.Put(2, LAYOUT, None, [m.PutPage(hash_, 0, 65_536) for hash_ in hashes_of(blocks)]))
        client.send(m.Get(3, LAYOUT, m.HashList.of(hashes_of(blocks)), 1000))
        client.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_and_mutated_frames_harm_nobody(store: StoreProcess, seed: int) -> None:
    dice = random.Random(seed)
    valid = [
        encode_frame(m.Hello((1, 1))),
        encode_frame(m.Lookup(1, LAYOUT, HASHES)),
        encode_frame(m.Get(2, LAYOUT, HASHES, 10)),
        encode_frame(m.Put(3, LAYOUT, None, [PAGE])),
        encode_frame(m.Release(4)),
        encode_frame(m.Stage(5, 100)),
        encode_frame(m.Hold(6, LAYOUT, HASHES, 10)),
        encode_frame(m.Prefetch(7, LAYOUT, HASHES)),
        encode_frame(m.Delete(8, LAYOUT, HASHES)),
        encode_frame(m.Pin(9, LAYOUT, HASHES, 1)),
        encode_frame(m.Report(LAYOUT, 16, 1000.0, 0, 1024.0)),
    ]
    for _ in range(20):
        with RawClient(store.socket, hello=dice.random() < 0.5, timeout_s=10) as client:
            data = bytearray(b"".join(dice.choices(valid, k=5)))
            for _ in range(dice.randrange(4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            client.sock.sendall(data)
            client.sock.shutdown(socket.SHUT_WR)
            while client.receive() is not None:
                pass


def test_many_connections_of_one_pod_are_bounded(store: StoreProcess) -> None:
    with store.connect() as first:
        others = []
        try:
            for _ in range(70):
                sock = socket.socket(socket.AF_UNIX)
                others.append(sock)
                sock.connect(str(store.socket))
            others[-1].settimeout(30)
            assert others[-1].recv(1) == b""
            assert first.lookup([HASH]).whole_blocks == 0
        finally:
            for sock in others:
                sock.close()


def test_tiny_pages_in_great_number_take_no_more_index_than_the_quotas_are_meant_for(make_store: MakeStore) -> None:
    store = make_store(meanPage="64Ki").start()  # 128 pages in DRAM, 512 on NVMe, and what an open segment takes
    chains = [chain(f"tiny-{number}", 100, 100) for number in range(60)]
    for again in (False, True):
        with store.connect() as client:
            for blocks in chains[-2:] if again else chains:
                reply = client.put(None, blocks)
                assert isinstance(reply, m.PutReply)
                assert reply.reached is m.Reach.DRAM
            assert client.lookup(hashes_of(chains[-1])).whole_blocks == 100
            assert sum(client.lookup(hashes_of(blocks)).whole_blocks for blocks in chains) < 2000
        store.kill()
        store.start()
