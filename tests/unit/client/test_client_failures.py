"""Whatever an agent does, a call is a miss within its deadline, counted by cause, and the next agent serves."""

from __future__ import annotations

import logging
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kvtier_client import Client, Found, Page, Reach, Stored
from kvtier_client.protocol.frames import encode_frame
from kvtier_client.protocol.messages import (
    Chunks,
    Done,
    Get,
    GetReply,
    Handover,
    HelloReply,
    HoldReply,
    Lookup,
    LookupReply,
    PinReply,
    PrefetchReply,
    Put,
    PutReply,
    RefusalCode,
    Refused,
    Stage,
)
from kvtier_client.protocol.places import PagePlace, pack_places

from tests.unit.client.faces import Face
from tests.unit.client.peer import LAYOUT, WELCOME, ArenaScript, Link, Script, ScriptedAgent, chain, open_descriptors

PATIENCE_S = 0.4
GRACE_S = 1.0
"""How much later than its deadline a call may end on a busy machine."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def ask_all(client: Client) -> None:
    """One call of each kind, each a miss."""
    assert client.lookup(LAYOUT, chain(2)) == Found()
    assert client.get(LAYOUT, chain(2)).blocks == 0
    assert client.get_into(LAYOUT, chain(1), [bytearray(8)]).blocks == 0
    assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]) == Stored()
    assert client.hold(LAYOUT, chain(2)).blocks == 0
    assert not client.release(5)
    assert client.prefetch(LAYOUT, chain(2)) == 0
    assert not client.delete(LAYOUT, chain(2))
    assert client.pin(LAYOUT, chain(2), 10) == 0
    told = client.report(LAYOUT, block_tokens=16, prefill_tokens_per_s=1e3, at_depth=0, bytes_per_token=1e5)
    assert not told


CALLS = 10


def hang(link: Link) -> None:
    link.receive()
    link.stopped.wait(10)


def hang_after_hello(link: Link) -> None:
    link.welcome()
    link.receive()
    link.stopped.wait(10)


def half_a_frame(link: Link) -> None:
    link.receive()
    link.sock.sendall(encode_frame(WELCOME)[:-3])
    link.stopped.wait(10)


def drip(link: Link) -> None:
    """Never silent for long, and never done: a deadline per receive would not end this."""
    link.receive()
    link.sock.sendall(struct.pack("<I", 1000))
    while not link.stopped.wait(0.05):
        link.sock.sendall(b"\x00")


def never_read(link: Link) -> None:
    link.welcome()
    link.stopped.wait(10)


def test_missing_agent_is_a_miss_at_once(tmp_path: Path, face: Face) -> None:
    with face(tmp_path / "nobody.sock") as client, within(GRACE_S):
        ask_all(client)
    assert client.misses.total() == CALLS
    assert set(client.misses) <= {"no_agent", "backoff"}


def test_dead_agents_socket_is_a_miss_at_once(tmp_path: Path) -> None:
    ScriptedAgent(tmp_path / "agent.sock", hang).stop()
    with Client(tmp_path / "agent.sock") as client, within(GRACE_S):
        ask_all(client)
    assert client.misses["no_agent"] >= 1


@pytest.mark.parametrize("script", [hang, hang_after_hello, half_a_frame, drip])
def test_hanging_agent_is_a_miss_by_the_deadline(tmp_path: Path, face: Face, script: Script) -> None:
    with (
        ScriptedAgent(tmp_path / "agent.sock", script),
        face(tmp_path / "agent.sock", deadline_s=PATIENCE_S) as client,
    ):
        with within(PATIENCE_S + GRACE_S):
            assert client.lookup(LAYOUT, chain(2)) == Found()
        with within(PATIENCE_S + GRACE_S):
            assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")], deadline_s=PATIENCE_S) == Stored()
        assert client.misses == {"timeout": 2}
        with within(GRACE_S):
            assert client.get(LAYOUT, chain(2)).blocks == 0
        assert client.misses == {"timeout": 2, "backoff": 1}


def test_agent_that_never_reads_is_a_miss_by_the_deadline(tmp_path: Path, face: Face) -> None:
    with ScriptedAgent(tmp_path / "agent.sock", never_read), face(tmp_path / "agent.sock") as client:
        with within(PATIENCE_S + GRACE_S):
            assert client.lookup(LAYOUT, chain(30_000), deadline_s=PATIENCE_S) == Found()
        assert client.misses == {"timeout": 1}


def test_listener_without_a_store_is_a_miss_by_the_deadline(tmp_path: Path, face: Face) -> None:
    """As between two stores: the listener lives on, connections wait, and in the end the backlog is full."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen(0)
        for _ in range(3):
            with face(tmp_path / "agent.sock", deadline_s=PATIENCE_S) as client, within(PATIENCE_S + GRACE_S):
                assert client.lookup(LAYOUT, chain(2)) == Found()
                assert client.misses == {"timeout": 1}


def answering(*answers: Callable[[Link], None]) -> Script:
    """A script that greets, and meets each request with the next answer."""

    def script(link: Link) -> None:
        link.welcome()
        for answer in answers:
            link.receive()
            answer(link)
        link.receive()

    return script


def sending(*messages: object, descriptors: int = 0) -> Callable[[Link], None]:
    def send(link: Link) -> None:
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors)]
        for message in messages:
            link.send(message, opened)  # type: ignore[arg-type]
        for descriptor in opened:
            os.close(descriptor)

    return send


def raw(data: bytes) -> Callable[[Link], None]:
    return lambda link: link.sock.sendall(data)


PLACE = PagePlace(1, 0, 8, 0, 1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), id="http"),
        pytest.param(raw(struct.pack("<I", 3) + b"\xc1\xc1\xc1"), id="no-messagepack"),
        pytest.param(raw(struct.pack("<I", (4 << 20) + 1)), id="oversized"),
        pytest.param(raw(struct.pack("<I", 0)), id="empty-frame"),
        pytest.param(sending(Done(1)), id="other-kind"),
        pytest.param(sending(LookupReply(99, 0, 0, 0)), id="other-request"),
        pytest.param(sending(LookupReply(1, 3, 0, 0)), id="more-than-asked"),
        pytest.param(sending(LookupReply(1, 1, 2, 0)), id="dram-above-whole"),
        pytest.param(sending(LookupReply(1, -1, -1, 0)), id="negative"),
        pytest.param(sending(LookupReply(1, 1, 1, 0), descriptors=2), id="descriptors-unnamed"),
        pytest.param(sending(Chunks([1, 2])), id="chunks-without-descriptors"),
        pytest.param(sending(Chunks([1]), descriptors=1), id="chunk-is-no-file"),
        pytest.param(sending(Handover()), id="late-handover"),
    ],
)
def test_nonsense_in_answer_to_a_lookup_is_a_miss(tmp_path: Path, face: Face, answer: Callable[[Link], None]) -> None:
    before = open_descriptors()
    agent = ScriptedAgent(tmp_path / "agent.sock", answering(answer))
    with face(agent.path, deadline_s=3) as client, within(2):
        assert client.lookup(LAYOUT, chain(2)) == Found()
        assert client.misses == {"protocol": 1}
    agent.stop()
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        pytest.param(lambda c: c.hold(LAYOUT, chain(2)).blocks, HoldReply(1, 3, 5, 1000), id="hold"),
        pytest.param(lambda c: c.prefetch(LAYOUT, chain(2)), PrefetchReply(1, 3), id="prefetch"),
        pytest.param(lambda c: c.prefetch(LAYOUT, chain(2)), PrefetchReply(1, -1), id="prefetch-negative"),
        pytest.param(lambda c: c.pin(LAYOUT, chain(2), 5), PinReply(1, 3), id="pin"),
        pytest.param(lambda c: c.delete(LAYOUT, chain(2)), LookupReply(1, 0, 0, 0), id="delete"),
        pytest.param(lambda c: c.lookup(LAYOUT, chain(2)).offered_blocks, LookupReply(1, 1, 1, 2), id="lookup"),
        pytest.param(lambda c: c.get(LAYOUT, chain(2)).blocks, GetReply(1, 3, b""), id="get"),
        pytest.param(lambda c: c.get(LAYOUT, chain(2)).blocks, GetReply(1, -1, b""), id="get-negative"),
        pytest.param(lambda c: c.get(LAYOUT, chain(2)).blocks, GetReply(1, 0, bytes(40)), id="get-of-nothing"),
    ],
)
def test_answer_that_makes_no_sense_is_a_miss(
    tmp_path: Path, face: Face, call: Callable[[Client], int], answer: object
) -> None:
    with (
        ScriptedAgent(tmp_path / "agent.sock", answering(sending(answer))) as agent,
        face(agent.path, deadline_s=3) as client,
    ):
        assert not call(client)
        assert client.misses == {"protocol": 1}


def chunk_of(size: int) -> Callable[[Link], None]:
    def send(link: Link) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            link.send(Chunks([1]), [file.fileno()])

    return send


@pytest.mark.parametrize(
    "place",
    [
        PagePlace(2, 0, 8, 0, 1, 0),
        PagePlace(1, 4090, 8, 0, 1, 0),
        PagePlace(1, (1 << 64) - 8, 16, 0, 1, 0),
        PagePlace(1, 0, 0, 0, 1, 0),
        PagePlace(1, 0, 8, 4, 1, 0),
        PagePlace(1, 0, 8, 4096, 1, 0),
    ],
    ids=["unknown-chunk", "past-the-end", "overflowing", "empty", "unaligned-generation", "generation-outside"],
)
def test_place_outside_the_arena_is_a_miss(tmp_path: Path, face: Face, place: PagePlace) -> None:
    def answer(link: Link) -> None:
        chunk_of(4096)(link)
        link.send(GetReply(1, 1, pack_places([place])))

    with ScriptedAgent(tmp_path / "agent.sock", answering(answer)) as agent, face(agent.path, deadline_s=3) as client:
        assert client.get(LAYOUT, chain(1)).blocks == 0
        assert client.misses == {"protocol": 1}


def test_chunk_that_is_gone_between_two_calls_is_not_read_any_more(tmp_path: Path, face: Face) -> None:
    def first(link: Link) -> None:
        chunk_of(4096)(link)
        link.send(GetReply(1, 1, pack_places([PLACE])))
        link.send(Chunks([], gone=[1]))

    script = answering(first, sending(GetReply(2, 1, pack_places([PLACE]))))
    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        held = client.get(LAYOUT, chain(1))
        assert (held.blocks, bytes(held.views[0])) == (1, bytes(8))
        assert client.get(LAYOUT, chain(1)).blocks == 0
        assert client.misses == {"protocol": 1}
        assert bytes(held.views[0]) == bytes(8)


def test_answer_that_nobody_asked_for_costs_the_connection_alone(tmp_path: Path) -> None:
    def twice(link: Link) -> None:
        link.send(LookupReply(1, 1, 0, 0))
        link.send(LookupReply(2, 2, 2, 0))

    script = answering(twice, sending(LookupReply(2, 1, 1, 0)))
    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, Client(agent.path, deadline_s=3) as client:
        assert client.lookup(LAYOUT, chain(2)) == Found(1, 0, 0)
        time.sleep(0.05)
        agent.script = answering(sending(LookupReply(1, 1, 1, 0)))
        assert client.lookup(LAYOUT, chain(2)) == Found(1, 1, 0)
        assert agent.connections == 2


def test_more_descriptors_than_the_process_may_open_is_a_miss(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def answer(link: Link) -> None:
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 5, hard))
        link.send(Chunks(list(range(30))), opened)
        for descriptor in opened:
            os.close(descriptor)

    try:
        with (
            ScriptedAgent(tmp_path / "agent.sock", answering(answer)) as agent,
            Client(agent.path, deadline_s=3) as client,
        ):
            assert client.get(LAYOUT, chain(1)).blocks == 0
            assert client.misses.keys() <= {"protocol", "local"}
            assert client.misses.total() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        (HelloReply(2, "newer", "", ""), "protocol"),
        (Done(0), "protocol"),
        (Handover(), "protocol"),
        (Refused(RefusalCode.VERSION, "upgrade the client"), "refused:version"),
        (Refused(RefusalCode.NOT_GRANTED, "no grant"), "refused:not_granted"),
    ],
    ids=["version-not-offered", "other-kind", "handover-of-nothing", "refused-version", "refused-grant"],
)
def test_hello_that_is_not_welcomed_is_a_miss(tmp_path: Path, face: Face, first: object, cause: str) -> None:
    def script(link: Link) -> None:
        link.receive()
        link.send(first)  # type: ignore[arg-type]
        link.receive()

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        assert client.lookup(LAYOUT, chain(2)) == Found()
        assert client.misses == {cause: 1}


def test_handover_of_something_else_than_a_socket_is_a_miss(tmp_path: Path, face: Face) -> None:
    def script(link: Link) -> None:
        link.receive()
        sending(Handover(), descriptors=1)(link)

    before = open_descriptors()
    agent = ScriptedAgent(tmp_path / "agent.sock", script)
    with face(agent.path, deadline_s=3) as client:
        assert client.lookup(LAYOUT, chain(2)) == Found()
        assert client.misses == {"protocol": 1}
    agent.stop()
    assert open_descriptors() <= before


def test_refused_request_is_a_miss_and_keeps_the_connection(tmp_path: Path, face: Face) -> None:
    answers = [sending(Refused(RefusalCode.LIMIT, "too much", number)) for number in (1, 2)]
    with (
        ScriptedAgent(tmp_path / "agent.sock", answering(*answers)) as agent,
        face(agent.path, deadline_s=3) as client,
    ):
        assert client.lookup(LAYOUT, chain(2)) == Found()
        assert client.get(LAYOUT, chain(2)).blocks == 0
        assert client.misses == {"refused:limit": 2}
        assert agent.connections == 1


def test_put_refused_in_the_middle_tells_what_was_stored(tmp_path: Path, face: Face) -> None:
    def script(link: Link) -> None:
        link.welcome()
        puts = 0
        while True:
            match link.receive():
                case Stage(request_id):
                    link.send(Done(request_id))
                case Put() as put if puts == 0:
                    puts += 1
                    link.send(PutReply(put.request_id, 1, 1, Reach.SEALED))
                case Put() as put:
                    link.send(Refused(RefusalCode.NO_ROOM, "quota", put.request_id))

    pages = [Page(value, b"x") for value in chain(4)]
    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, staging_bytes=65536) as client:
        assert client.put(LAYOUT, None, pages, deadline_s=3) == Stored(1, 1, None)
        assert client.misses == {"refused:no_room": 1}


def test_staging_of_an_unanswered_put_is_never_written_again(tmp_path: Path, face: Face) -> None:
    """The agent that missed the deadline may still copy from it: it must find what was put."""
    stagings: list[int] = []

    def script(link: Link) -> None:
        link.welcome()
        while True:
            match link.receive():
                case Stage(request_id):
                    stagings.append(os.dup(link.descriptors.pop()))
                    link.send(Done(request_id))
                case Put() as put if len(stagings) > 1:
                    link.send(PutReply(put.request_id, 1, 0, Reach.DRAM))

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, face(agent.path, deadline_s=3) as client:
        assert client.put(LAYOUT, None, [Page(chain(1)[0], b"first")], deadline_s=PATIENCE_S) == Stored()
        assert client.put(LAYOUT, None, [Page(chain(1)[0], b"other")]).stored_pages == 1
    assert [os.pread(descriptor, 5, 0) for descriptor in stagings] == [b"first", b"other"]
    for descriptor in stagings:
        os.close(descriptor)


def test_client_closed_during_a_put_lets_it_end_and_leaves_nothing(tmp_path: Path) -> None:
    arrived = threading.Event()

    def script(link: Link) -> None:
        link.welcome()
        while True:
            match link.receive():
                case Stage(request_id):
                    link.send(Done(request_id))
                case Put() as put:
                    arrived.set()
                    time.sleep(0.1)
                    link.send(PutReply(put.request_id, 1, 0, Reach.DRAM))

    before = open_descriptors()
    agent = ScriptedAgent(tmp_path / "agent.sock", script)
    client = Client(agent.path, deadline_s=5)
    stored: list[Stored] = []
    putting = threading.Thread(target=lambda: stored.append(client.put(LAYOUT, None, [Page(chain(1)[0], b"data")])))
    putting.start()
    assert arrived.wait(5)
    client.close()
    putting.join(5)
    agent.stop()
    assert stored == [Stored(1, 0, Reach.DRAM)]
    assert open_descriptors() <= before
    assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]) == Stored()
    assert client.misses == {"client_closed": 1}


def test_agent_killed_between_calls_costs_nothing(tmp_path: Path, face: Face) -> None:
    arena = ArenaScript(tmp_path)
    with face(tmp_path / "agent.sock", deadline_s=3) as client:
        with ScriptedAgent(tmp_path / "agent.sock", arena):
            client.put(LAYOUT, None, [Page(chain(1)[0], b"data")])
        with ScriptedAgent(tmp_path / "agent.sock", arena):
            assert client.lookup(LAYOUT, chain(1)) == Found(1, 1, 1)
        assert not client.misses


def test_agent_killed_during_a_call_is_a_miss_and_the_next_serves(tmp_path: Path) -> None:
    asked = threading.Event()

    def script(link: Link) -> None:
        link.welcome()
        link.receive()
        asked.set()
        link.receive()

    arena = ArenaScript(tmp_path)
    agent = ScriptedAgent(tmp_path / "agent.sock", script)
    with Client(agent.path, deadline_s=5) as client:
        found: list[Found] = []
        caller = threading.Thread(target=lambda: found.append(client.lookup(LAYOUT, chain(1))))
        caller.start()
        assert asked.wait(5)
        with within(GRACE_S):
            agent.stop()
            caller.join(5)
        assert found == [Found()]
        assert client.misses == {"closed": 1}
        with ScriptedAgent(agent.path, arena):
            assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]).stored_pages == 1


def test_call_after_a_long_outage_is_served_within_the_longest_pause(tmp_path: Path) -> None:
    with Client(tmp_path / "agent.sock", deadline_s=3) as client:
        for _ in range(200):
            client.lookup(LAYOUT, chain(1))
            time.sleep(0.002)
        assert client.misses["no_agent"] < 12 < client.misses["backoff"]
        with ScriptedAgent(tmp_path / "agent.sock", ArenaScript(tmp_path)), within(5.5):
            while not client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]).stored_pages:
                time.sleep(0.02)


def test_outage_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvtier.client")
    with Client(tmp_path / "agent.sock", deadline_s=3) as client:
        for _ in range(20):
            client.lookup(LAYOUT, chain(1))
        with ScriptedAgent(tmp_path / "agent.sock", ArenaScript(tmp_path)):
            deadline = time.monotonic() + 6
            while "the agent answers again" not in caplog.messages and time.monotonic() < deadline:
                client.lookup(LAYOUT, chain(1))
                time.sleep(0.02)
    assert len(caplog.messages) == 2
    assert "No such file or directory; until it answers again every call is a miss" in caplog.messages[0]


def test_caller_without_a_free_connection_is_a_miss_by_its_deadline(tmp_path: Path) -> None:
    entered = threading.Semaphore(0)
    leave = threading.Event()

    def script(link: Link) -> None:
        link.welcome()
        ask = link.receive()
        assert isinstance(ask, Lookup | Get)
        entered.release()
        leave.wait(10)
        link.send(LookupReply(ask.request_id, 0, 0, 0))
        link.receive()

    with ScriptedAgent(tmp_path / "agent.sock", script) as agent, Client(agent.path, deadline_s=10) as client:
        callers = [threading.Thread(target=client.lookup, args=(LAYOUT, chain(1))) for _ in range(8)]
        for caller in callers:
            caller.start()
        for _ in callers:
            assert entered.acquire(timeout=5)
        with within(PATIENCE_S + GRACE_S):
            assert client.lookup(LAYOUT, chain(1), deadline_s=PATIENCE_S) == Found()
        assert client.misses == {"busy": 1}
        leave.set()
        for caller in callers:
            caller.join()
        assert agent.connections == 8
