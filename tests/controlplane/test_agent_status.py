"""The store's attendant before the real API server: what the store is told, what the status says."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvtier_agent.control import SetPools, Snapshot
from kvtier_agent.serve.attendant import Attendant
from kvtier_agent.serve.reporter import FIGURES_S, Reporter
from kvtier_client.protocol.frames import FrameDecoder, encode_frame

from dev.cluster.cluster import Cluster
from tests.controlplane.agent_nodes import (
    admin_client,
    read_cache_node,
    store_cache_node,
    stored_cache_node,
    until,
    until_reason,
)
from tests.controlplane.crds_api import Api, Object, connect
from tests.unit.serve.snapshots import pool, snapshot

NODE = "agent-status"
POOL = {
    "uid": "pool-uid-1",
    "namespace": "team-a",
    "name": "chat",
    "quota": {"dram": "512Mi", "nvme": "1Gi"},
    "serviceAccounts": [{"namespace": "team-a", "name": "*"}],
}


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Api:
    return connect(control_plane.programs["kubectl"], control_plane.kubeconfig)


@dataclass
class StoreEnd:
    """The store's end of the control socket."""

    control: socket.socket
    reporter: Reporter
    tasks: list[asyncio.Task[None]]
    decoder: FrameDecoder[SetPools]

    async def told(self) -> SetPools:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while True:
                for pools in self.decoder.feed(await loop.sock_recv(self.control, 1 << 16)):
                    return pools

    async def stop_reporting(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task

    def say(self, seen: Snapshot) -> None:
        self.control.sendall(encode_frame(seen))


@asynccontextmanager
async def running_reporter(api: Api, folder: Path, tier_class: str = "gpu") -> AsyncIterator[StoreEnd]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        attendant = Attendant(theirs)
        async with admin_client(api, folder, NODE) as client:
            reporter = Reporter(client, attendant, tier_class)
            tasks = [asyncio.create_task(part) for part in (attendant.listen(), reporter.watch(), reporter.report())]
            store = StoreEnd(ours, reporter, tasks, FrameDecoder(SetPools))
            try:
                yield store
            finally:
                await store.stop_reporting()


def spec(**changes: object) -> Object:
    return {"tierClass": "gpu", "tiers": {"dram": {"capacityPerNode": "1536Mi"}}, "pools": [POOL]} | changes


async def test_store_is_told_of_its_pools_and_every_change(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            first = await store.told()
            assert (first.generation, [grant.uid for grant in first.pools], first.drain) == (1, ["pool-uid-1"], False)
            store_cache_node(api, NODE, spec(pools=[]))
            assert await store.told() == SetPools(2, ())
            store_cache_node(api, NODE, spec(pools=[], drain=True))
            assert await store.told() == SetPools(3, (), drain=True)


async def test_status_follows_the_snapshots(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            await until_reason(api, NODE, "Ready", "Starting")
            store.say(snapshot(generation=0, ready=False, tiers={}, message="1 of 2 segments read"))
            recovering = await until_reason(api, NODE, "Ready", "Recovering")
            assert recovering["message"] == "the store on node agent-status reads what it kept: 1 of 2 segments read"
            store.say(snapshot(generation=1))
            await until_reason(api, NODE, "Ready", "Serving")
            status = read_cache_node(api, NODE)["status"]
            assert status["tiers"]["dram"] == {"capacity": "1.5Gi", "used": "300Mi"}
            assert (status["hitRatio"], status["observedGeneration"]) == ("87%", 1)
            assert status["pools"][0]["blocks"] == 100
            table = api.do("get", "cachenode", NODE).splitlines()
            assert table[1].split()[1:8] == ["gpu", "1.5Gi", "300Mi", "2Gi", "700Mi", "87%", "True"]
            store.say(snapshot(generation=1, ready=False, tiers={}, message="a successor reads"))
            await until_reason(api, NODE, "Ready", "Recovering")


async def test_figures_alone_are_written_at_a_bounded_rate(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            store.say(snapshot(generation=1))
            await until_reason(api, NODE, "Ready", "Serving")
            began_s, versions = time.monotonic(), set()
            for number in range(30):
                store.say(snapshot(generation=1, pools=(pool(blocks=number),)))
                await asyncio.sleep(0.2)
                found = await asyncio.to_thread(read_cache_node, api, NODE)
                versions.add(found["metadata"]["resourceVersion"])
            assert 2 <= len(versions) <= 2 + (time.monotonic() - began_s) / FIGURES_S
            await asyncio.sleep(FIGURES_S)
            store.say(snapshot(generation=1, pools=(pool(blocks=1234),)))
            await until(lambda: read_cache_node(api, NODE)["status"]["pools"][0]["blocks"] == 1234)


async def test_nothing_changed_is_not_written(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            store.say(snapshot(generation=1))
            await until_reason(api, NODE, "Ready", "Serving")
            before = read_cache_node(api, NODE)["metadata"]["resourceVersion"]
            for _ in range(14):
                store.say(snapshot(generation=1))
                await asyncio.sleep(0.5)
            assert read_cache_node(api, NODE)["metadata"]["resourceVersion"] == before


async def test_drained_is_reported_for_the_generation_that_asks(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            store.say(snapshot(generation=1))
            await until_reason(api, NODE, "Drained", "NotDraining")
            store_cache_node(api, NODE, spec(drain=True))
            await until_reason(api, NODE, "Drained", "Flushing")
            store.say(snapshot(generation=2, drained=True))
            drained = await until_reason(api, NODE, "Drained", "Flushed")
            assert (drained["status"], drained["observedGeneration"]) == ("True", 2)


async def test_store_that_ends_says_so(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        async with running_reporter(api, tmp_path) as store:
            store.say(snapshot(generation=1))
            await until_reason(api, NODE, "Ready", "Serving")
            await store.stop_reporting()
            await store.reporter.say_goodbye()
            stopped = await until_reason(api, NODE, "Ready", "StoreStopped")
            assert stopped["status"] == "False"
            assert read_cache_node(api, NODE)["status"]["hitRatio"] == "87%"


async def test_store_of_another_class_is_told_nothing_and_writes_nothing(api: Api, tmp_path: Path) -> None:
    with stored_cache_node(api, NODE, spec()):
        before = read_cache_node(api, NODE)
        async with running_reporter(api, tmp_path, tier_class="cpu") as store:
            store.say(snapshot(generation=1))
            await asyncio.sleep(2)
            with pytest.raises(BlockingIOError):
                store.control.recv(1)
        assert json.dumps(read_cache_node(api, NODE)) == json.dumps(before)
