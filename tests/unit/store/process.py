"""A store process for tests: real movers, real sockets, small capacities."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kvtier_agent.control import PoolGrant, ServiceAccount, SetPools, Snapshot, ToAttendant
from kvtier_agent.store.nvme.device import decode_superblock
from kvtier_agent.store.nvme.segments import decode_segment_header
from kvtier_client.protocol.frames import FrameDecoder, encode_frame
from kvtier_client.protocol.messages import HelloReply

from tests.unit.store.rawclient import RawClient

HERE = Path(__file__).parent
WAIT_S = 60.0
POOL = "pool-uid-1"
NO_ATTENDANT = ("bash", "-c", 'exec cat <&"$2" >/dev/null', "attendant")

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None]) -> T:
    """The first thing that `look` returns that is not None or False."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {WAIT_S:.0f} s")


class StoreProcess:
    """One configuration, and the store processes that run on it one after the other."""

    def __init__(self, folder: Path, arena: Path, **config: Any) -> None:
        self.folder, self.arena = folder, arena
        self.nvme = folder / "nvme"
        self.nvme.mkdir()
        self.socket = folder / "pool.sock"
        self.config: dict[str, Any] = {
            "arena": {"path": str(arena), "capacity": "8Mi"},
            "nvme": {"capacity": "32Mi", "devices": [{"name": "d0", "path": str(self.nvme)}]},
            "movers": 2,
        } | config
        if "nodeSocket" not in self.config and "pools" not in self.config:
            self.config["pools"] = [self.pool_config()]
        self.program: tuple[str, ...] = sys.executable, str(HERE / "run_store.py")
        self.attendant: tuple[str, ...] = NO_ATTENDANT
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "log"

    def pool_config(self, **changes: Any) -> dict[str, Any]:
        return {
            "name": "demo",
            "uid": POOL,
            "dramQuota": "8Mi",
            "nvmeQuota": "32Mi",
            "socket": str(self.socket),
        } | changes

    def spawn(self) -> None:
        """Start it, ready or not."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(self.config))
        with self.log.open("ab") as log:
            command = [*self.program, str(path), *self.attendant]
            self.process = subprocess.Popen(command, stderr=log)

    def start(self) -> StoreProcess:
        """Start it and wait until it serves."""
        self.spawn()
        wait_for("the store serves", self.serves)
        return self

    def connect(self) -> RawClient:
        client = RawClient(self.socket)
        assert isinstance(client.greeting, HelloReply), client.greeting
        return client

    def kill(self) -> None:
        """As kill -9 does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def terminate(self) -> int:
        """As Kubernetes ends it; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def movers(self) -> list[int]:
        """The pids of its movers."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"kvtier_agent.store.mover" in _command(pid)]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def log_text(self) -> str:
        return self.log.read_text()

    def device_movers(self) -> list[int]:
        """The pids of its devices' movers."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"kvtier_agent.store.nvme.io_mover" in _command(pid)]

    def nvme_bytes(self, pool: str = POOL) -> int:
        """Of the units on its device that have a segment of the pool."""
        with self.device.open("rb") as file:
            cut = decode_superblock("device", file.read(4096))
            assert cut is not None
            found = 0
            for unit in range(cut.units):
                file.seek(cut.unit_at(unit))
                segment = decode_segment_header("unit", file.read(4096), unit, cut.unit_bytes)
                found += segment is not None and segment.pool_uid == pool
        return found * cut.unit_bytes

    @property
    def device(self) -> Path:
        """The file of its nvme device."""
        return self.nvme / "kvtier.dev"

    def chunks(self, pool: str = POOL) -> list[Path]:
        return sorted((self.arena / pool).glob("*.chunk"))

    def chunk_bytes(self, pool: str = POOL) -> int:
        """Of the pool's chunks, some of which may just be given back."""
        total = 0
        for chunk in self.chunks(pool):
            with contextlib.suppress(FileNotFoundError):
                total += chunk.stat().st_size
        return total

    def serves(self) -> bool:
        """Whether a client is let in."""
        assert self.process is not None
        assert self.process.poll() is None, self.log_text()
        if not self.socket.exists():
            return False
        try:
            with RawClient(self.socket) as client:
                return isinstance(client.greeting, HelloReply)
        except OSError:
            return False


class Controller:
    """The far end of the relaying attendant: tells pools, hears snapshots."""

    def __init__(self, store: StoreProcess) -> None:
        path = store.folder / "control.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(WAIT_S)
        self._connection: socket.socket | None = None
        self._decoder: FrameDecoder[Snapshot] = FrameDecoder(ToAttendant)
        store.attendant = (sys.executable, str(HERE / "relay.py"), str(path))

    def accept(self) -> None:
        """Wait for the attendant of a store that was just started."""
        if self._connection is not None:
            self._connection.close()
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(WAIT_S)
        self._decoder = FrameDecoder(ToAttendant)

    def set_pools(self, generation: int, *pools: PoolGrant, drain: bool = False) -> None:
        assert self._connection is not None
        self._connection.sendall(encode_frame(SetPools(generation, pools, drain)))

    def snapshot(self, wanted: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot:
        """The next snapshot that is as wanted."""
        assert self._connection is not None
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            data = self._connection.recv(1 << 16)
            assert data, "the attendant ended"
            for snapshot in self._decoder.feed(data):
                if wanted(snapshot):
                    return snapshot
        raise AssertionError("no such snapshot came")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._listener.close()


def grant(uid: str = POOL, name: str = "demo", **changes: Any) -> PoolGrant:
    """A pool of namespace `team`, granted to the service account `engine` there."""
    values: dict[str, Any] = {
        "uid": uid,
        "namespace": "team",
        "name": name,
        "dram_quota": 8 << 20,
        "nvme_quota": 32 << 20,
        "service_accounts": (ServiceAccount("team", "engine"),),
    }
    return PoolGrant(**(values | changes))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
