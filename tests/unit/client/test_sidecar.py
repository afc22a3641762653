"""The sidecar as its own process: answers with and without an agent, hands over, and stays small."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kvtier_client import Client, Found, Page
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.messages import HashList, Hello, Lookup, RefusalCode, Refused, ToClient

from tests.unit.client.peer import LAYOUT, ArenaScript, ScriptedAgent, chain

NOBODY = 65534
START_DEADLINE_S = 20


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvtier_client.sidecar", *arguments]


def probe(pod_dir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("--probe"),
        env={"KVTIER_POD_DIR": str(pod_dir)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def sidecar(pod_dir: Path, program: list[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A sidecar that listens; killed at the end if it still runs."""
    process = subprocess.Popen(
        program or command(), env={"KVTIER_POD_DIR": str(pod_dir)}, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            deadline = time.monotonic() + START_DEADLINE_S
            while not accepts(pod_dir / "kvtier.sock"):
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


def accepts(path: Path) -> bool:
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
        except OSError:
            return False
        finally:
            os.close(folder)
    return True


def say(path: Path, data: bytes, patience_s: float = 5) -> ToClient | None:
    """What the sidecar answers to these bytes; None when it closes without an answer."""
    decoder: FrameDecoder[ToClient] = FrameDecoder(ToClient)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(patience_s)
        sock.connect(str(path))
        sock.sendall(data)
        while received := sock.recv(4096):
            for message in decoder.feed(received):
                return message
    return None


def test_client_is_handed_over_and_bytes_bypass_the_sidecar(tmp_path: Path) -> None:
    with (
        ScriptedAgent(tmp_path / "agent.sock", ArenaScript(tmp_path)),
        sidecar(tmp_path) as process,
        Client(tmp_path / "kvtier.sock", deadline_s=5) as client,
    ):
        assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]).stored_pages == 1
        process.send_signal(signal.SIGSTOP)
        with client.get(LAYOUT, chain(1)) as held:
            assert bytes(held.views[0]) == b"data"
        process.send_signal(signal.SIGCONT)
        assert not client.misses


def test_absent_agent_is_refused_at_once_and_found_when_it_comes(tmp_path: Path) -> None:
    with sidecar(tmp_path), Client(tmp_path / "kvtier.sock", deadline_s=5) as client:
        began = time.monotonic()
        assert client.lookup(LAYOUT, chain(1)) == Found()
        assert time.monotonic() - began < 1
        assert client.misses == {"refused:unavailable": 1}
        answer = say(tmp_path / "kvtier.sock", encode_frame(Hello((1, 1))))
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.UNAVAILABLE
        assert "No such file or directory; is kvtier-node up?" in answer.message
        with ScriptedAgent(tmp_path / "agent.sock", ArenaScript(tmp_path)):
            assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]).stored_pages == 1


def test_agent_with_a_full_backlog_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as waiting, sidecar(tmp_path):
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen(0)
        while True:
            sock = waiting.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            try:
                sock.connect(str(tmp_path / "agent.sock"))
            except BlockingIOError:
                break
        answer = say(tmp_path / "kvtier.sock", encode_frame(Hello((1, 1))))
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.UNAVAILABLE
        assert "backlog is full" in answer.message


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode_frame(Lookup(1, LAYOUT, HashList.of(chain(1)))),
        encode_frame(Hello((1, 1), "x" * 5000)),
    ],
    ids=["http", "lookup-first", "long-hello"],
)
def test_first_frame_that_is_no_hello_is_refused(tmp_path: Path, data: bytes) -> None:
    with sidecar(tmp_path):
        answer = say(tmp_path / "kvtier.sock", data)
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.MALFORMED


def test_silent_clients_delay_others_by_no_more_than_a_hello_deadline(tmp_path: Path) -> None:
    with sidecar(tmp_path), ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "kvtier.sock"))
        began = time.monotonic()
        assert isinstance(say(tmp_path / "kvtier.sock", encode_frame(Hello((1, 1)))), Refused)
        assert time.monotonic() - began < 3


def test_many_clients_at_once_are_all_handed_over(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    def work() -> None:
        with Client(tmp_path / "kvtier.sock", deadline_s=20) as client:
            client.lookup(LAYOUT, chain(1))
            outcomes.append(not client.misses)

    with ScriptedAgent(tmp_path / "agent.sock", ArenaScript(tmp_path), backlog=128), sidecar(tmp_path):
        threads = [threading.Thread(target=work) for _ in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == [True] * 60


def test_long_pod_folder_works(tmp_path: Path) -> None:
    pod_dir = tmp_path / ("p" * 120)
    pod_dir.mkdir()
    short = tmp_path / "s"
    short.symlink_to(pod_dir)
    with ScriptedAgent(short / "agent.sock", ArenaScript(tmp_path)), sidecar(pod_dir):
        with Client(pod_dir / "kvtier.sock", deadline_s=5) as client:
            assert client.put(LAYOUT, None, [Page(chain(1)[0], b"data")]).stored_pages == 1
        assert probe(pod_dir).returncode == 0


def test_stale_socket_is_replaced_and_any_user_may_connect(tmp_path: Path) -> None:
    with sidecar(tmp_path) as process:
        process.kill()
        process.wait(10)
    assert stat.S_ISSOCK((tmp_path / "kvtier.sock").stat().st_mode)
    with sidecar(tmp_path):
        assert stat.S_IMODE((tmp_path / "kvtier.sock").stat().st_mode) == 0o666


def test_probe_asks_only_for_the_sidecars_own_socket(tmp_path: Path) -> None:
    before = probe(tmp_path)
    assert before.returncode == 1
    assert "kvtier.sock: No such file or directory" in before.stderr
    with sidecar(tmp_path):
        assert probe(tmp_path).returncode == 0


def test_termination_ends_promptly_with_zero_and_leaves_no_socket(tmp_path: Path) -> None:
    with sidecar(tmp_path) as process, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "kvtier.sock"))
        began = time.monotonic()
        process.terminate()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2
    assert not (tmp_path / "kvtier.sock").exists()


@pytest.mark.parametrize("obstacle", ["file", "no-folder"])
def test_place_that_cannot_be_listened_at_is_said_and_exits_one(tmp_path: Path, obstacle: str) -> None:
    pod_dir = tmp_path / "pod"
    if obstacle == "file":
        pod_dir.mkdir()
        (pod_dir / "kvtier.sock").write_text("precious")
    done = subprocess.run(
        command(), env={"KVTIER_POD_DIR": str(pod_dir)}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    expected = "is not a socket; remove it" if obstacle == "file" else "does the pod mount kvtier's volume?"
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_unprivileged_user_can_run_it(tmp_path: Path) -> None:
    pod_dir = tmp_path / "pod"
    pod_dir.mkdir()
    os.chown(pod_dir, NOBODY, NOBODY)
    for folder in [tmp_path, *tmp_path.parents[:-2]]:
        folder.chmod(folder.stat().st_mode | 0o011)
    # The interpreter may lie where only root may look, so the user changes after the imports.
    code = (
        "import os, shutil, sys; from kvtier_client.sidecar import main\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); sys.exit(main([]))"
    )
    with sidecar(pod_dir, [sys.executable, "-c", code]):
        assert (pod_dir / "kvtier.sock").stat().st_uid == NOBODY
