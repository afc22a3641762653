"""The attendant as a process beside a store: pages over HTTP, snapshots over the control socket, its end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from kvtier_agent.control import DeviceSnapshot, SetPools
from kvtier_agent.serve.attendant import STALE_S, STARTUP_S, Attendant
from kvtier_agent.serve.http import make_app
from kvtier_agent.serve.metrics import COUNTERS as COUNTER_TABLE
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.serve.snapshots import COUNTERS, pool, snapshot

CONFIG = """
arena: {{path: /nonexistent, capacity: 128Mi}}
pools: [{{name: chat, uid: u1, dramQuota: 64Mi, socket: /nonexistent/s}}]
http: {{port: {port}}}
"""


class Clock:
    """Time that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Served:
    """The attendant process and the store's end of its socket."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        config = folder / "store.yaml"
        config.write_text(CONFIG.format(port=self.port))
        self.control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "kvtier_agent.serve", "--control-fd", str(theirs.fileno())]
            self.process = subprocess.Popen([*command, "--config", str(config)], pass_fds=[theirs.fileno()])

    def page(self, name: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def until(self, name: str, status: int) -> str:
        deadline = time.monotonic() + 30
        while True:
            try:
                code, text = self.page(name)
            except urllib.error.URLError:
                code, text = 0, ""
            if code == status:
                return text
            assert time.monotonic() < deadline, (name, code, text)
            time.sleep(0.05)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path)
    yield running
    running.control.close()
    running.process.kill()
    running.process.wait(10)


def test_pages_follow_the_store(served: Served) -> None:
    assert served.until("healthz", 200) == "ok\n"
    assert served.until("readyz", 503) == "the store has started and not spoken yet\n"
    served.control.sendall(encode_frame(snapshot(ready=False, message="3 of 9 segments read")))
    while "3 of 9" not in served.until("readyz", 503):
        time.sleep(0.05)
    served.control.sendall(encode_frame(snapshot()))
    assert served.until("readyz", 200) == "ok\n"
    assert 'kvtier_pool_blocks{pool="team-a/chat"} 100.0' in served.until("metrics", 200)


def test_process_ends_when_the_store_closes_the_socket(served: Served) -> None:
    served.until("healthz", 200)
    served.control.close()
    assert served.process.wait(10) == 0


def test_process_outlives_the_signals_meant_for_the_store(served: Served) -> None:
    served.until("healthz", 200)
    for number in (signal.SIGTERM, signal.SIGINT):
        served.process.send_signal(number)
    served.control.sendall(encode_frame(snapshot()))
    served.until("readyz", 200)
    assert served.process.poll() is None


def test_process_that_cannot_serve_says_why(tmp_path: Path) -> None:
    config = tmp_path / "store.yaml"
    config.write_text("arena: {}")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "kvtier_agent.serve", "--control-fd", str(theirs.fileno())]
        done = subprocess.run(
            [*command, "--config", str(config)], pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 1
    assert "the attendant cannot serve" in done.stderr
    assert "Traceback" not in done.stderr


async def test_silent_store_is_unhealthy_and_not_ready() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        clock = Clock()
        attendant = Attendant(theirs, clock)
        async with TestClient(TestServer(make_app(attendant))) as client:
            clock.now += STARTUP_S - 1
            assert (await client.get("/healthz")).status == 200
            clock.now += 2
            assert (await client.get("/healthz")).status == 503
            attendant.snapshot = snapshot()
            clock.now = 100 + STALE_S - 1
            assert (await client.get("/readyz")).status == 200
            clock.now += 2
            for page in ("/healthz", "/readyz"):
                answer = await client.get(page)
                assert answer.status == 503
                assert await answer.text() == "the store has been silent for 16 s; it is allowed 15 s\n"


async def test_snapshot_that_was_heard_late_is_as_old_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        clock = Clock()
        attendant = Attendant(theirs, clock)
        clock.now += 3
        assert attendant.snapshot_age_s() == 3
        ours.sendall(encode_frame(snapshot(taken_s=clock.now - 2)))
        ours.close()
        await attendant.listen()
        assert (attendant.silent_s(), attendant.snapshot_age_s()) == (0, 2)


async def test_store_is_told_each_thing_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        attendant = Attendant(theirs)
        for generation in (1, 1, 2, 2):
            await attendant.tell(SetPools(generation, ()))
        decoder: FrameDecoder[SetPools] = FrameDecoder(SetPools)
        assert [told.generation for told in decoder.feed(ours.recv(4096))] == [1, 2]


async def test_metrics_carry_every_counter_with_pool_tier_and_help() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        attendant = Attendant(theirs)
        attendant.snapshot = snapshot(
            pools=(pool(gauges={"runs_per_chain": 1.5}), pool(name="code", uid="u2", counters={"lookups": 7})),
            devices=(
                DeviceSnapshot("d0", "ready", capacity_bytes=1 << 30, used_bytes=5, counters={"reads": 3}),
                DeviceSnapshot("d1", "slow"),
            ),
            adoption={"pages_adopted": 40},
        )
        async with TestClient(TestServer(make_app(attendant))) as client:
            text = await (await client.get("/metrics")).text()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    assert all(re.fullmatch(r"kvtier_[a-z_]+", family.name) and family.documentation for family in families)
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
    assert COUNTER_TABLE.keys() == COUNTERS.keys()
    for counter, (name, tier, _) in COUNTER_TABLE.items():
        labels = [("pool", "team-a/chat"), *([("tier", tier)] if tier else [])]
        assert values[(f"kvtier_{name}_total", *labels)] == COUNTERS[counter]
    assert values[("kvtier_lookups_total", ("pool", "team-a/code"))] == 7
    assert values[("kvtier_tier_used_bytes", ("tier", "dram"))] == 300 << 20
    assert values[("kvtier_pool_capacity_bytes", ("pool", "team-a/chat"), ("tier", "nvme"))] == 1 << 30
    assert values[("kvtier_device_in_use", ("device", "d1"))] == 0
    assert values[("kvtier_device_in_use", ("device", "d0"))] == 1
    assert values[("kvtier_device_state", ("device", "d1"), ("state", "slow"))] == 1
    assert values[("kvtier_device_state", ("device", "d1"), ("state", "ready"))] == 0
    assert values[("kvtier_device_reads_total", ("device", "d0"))] == 3
    assert values[("kvtier_device_used_bytes", ("device", "d0"))] == 5
    assert ("kvtier_device_used_bytes", ("device", "d1")) not in values
    assert values[("kvtier_pool_runs_per_chain", ("pool", "team-a/chat"))] == 1.5
    assert ("kvtier_pool_runs_per_chain", ("pool", "team-a/code")) not in values
    assert values[("kvtier_adoption_pages_adopted",)] == 40
    assert values[("kvtier_ready",)] == 1
