"""A store of its own: its files, its memory limit, its processes, and the ways in which they are ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from kvtier_crds.models import Tiers
from kvtier_operator.desired.resources import store_memory_bytes
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.clients import Clients
from tests.chaos.memory_cgroup import PodMemory
from tests.chaos.workload import POOLS

READY_DEADLINE_S: Final = 60.0
POLL_S: Final = 0.05
DEVICE: Final = "disk"
"""The nvme device's name."""
SECOND_DEVICE: Final = "disk-2"
WRITE_BACK_POOL: Final = POOLS[1]
"""Its pages are written to nvme when a put asks for it; the other pool's as they are stored."""
KVTIER_STORE: Final = Path(sys.executable).with_name("kvtier-store")
_ENTER_CGROUP: Final = 'echo $$ > "$0" && exec "$@"'


class StoreFailed(Exception):
    """The store did not come up; the message ends with the tail of its log."""


@dataclass(frozen=True)
class StorePlace:
    """Where a store keeps what, and how much. Each pool's quotas are its even share."""

    arena: Path
    media: Path
    scratch: Path
    dram_bytes: int
    nvme_bytes: int
    http_port: int
    raw: Path | None = None
    """The nvme tier's block device; None: it is the folder `media`."""
    second: Path | None = None
    """A second device's folder."""

    @property
    def devices(self) -> list[dict[str, str]]:
        """The nvme tier's devices, as a TierClass and the store's configuration name them."""
        paths = {DEVICE: self.raw or self.media} | ({SECOND_DEVICE: self.second} if self.second else {})
        return [{"name": name, "path": str(path)} for name, path in paths.items()]

    @property
    def sockets(self) -> dict[str, Path]:
        """The listening socket of each pool."""
        return {pool: self.scratch / f"{pool}.sock" for pool in POOLS}

    @property
    def pool_uids(self) -> dict[str, str]:
        """The pools' names by UID."""
        return {f"0c5a11ed-0000-4000-8000-{number:012}": pool for number, pool in enumerate(POOLS, 1)}

    @property
    def log(self) -> Path:
        """What every start of the store has said."""
        return self.scratch / "store.log"

    @property
    def pod_memory_bytes(self) -> int:
        """The memory limit that the operator gives the pod of such a store, arena included."""
        dram = {"capacityPerNode": str(self.dram_bytes)}
        nvme = {"capacityPerNode": str(self.nvme_bytes), "devices": self.devices}
        return store_memory_bytes(Tiers.model_validate({"dram": dram, "nvme": nvme}))

    def write_config(self) -> Path:
        """Make the folders and the configuration file."""
        for folder in (self.arena, self.media, self.scratch, self.second):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        pools = [
            {
                "name": f"chaos/{pool}",
                "uid": uid,
                "dramQuota": str(self.dram_bytes // len(POOLS)),
                "nvmeQuota": str(self.nvme_bytes // len(POOLS)),
                "socket": str(self.sockets[pool]),
                "write": "back" if pool == WRITE_BACK_POOL else "through",
            }
            for uid, pool in self.pool_uids.items()
        ]
        config = {
            "arena": {"path": str(self.arena), "capacity": str(self.dram_bytes)},
            "nvme": {"capacity": str(self.nvme_bytes), "devices": self.devices},
            "pools": pools,
            "http": {"port": self.http_port},
            "movers": 2,
        }
        path = self.scratch / "store.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def device_state(self) -> str:
        """The nvme device's state, in the store's words; "unknown" while nobody tells."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=5.0) as page:
                families = list(text_string_to_metric_families(page.read().decode()))
        except OSError:
            return "unknown"
        samples = [it for family in families if family.name == "kvtier_device_state" for it in family.samples]
        return next((it.labels["state"] for it in samples if it.value and it.labels["device"] == DEVICE), "unknown")

    def empty_arena(self) -> None:
        """Take away all that the node's memory held, as a restarted node does."""
        for entry in self.arena.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class StoreProcess:
    """Starts and kills one store, again and again, each start in a container's group of its own. Not thread-safe."""

    def __init__(self, place: StorePlace, memory: PodMemory) -> None:
        self.place = place
        self._memory = memory
        self._config = place.write_config()
        self._process: subprocess.Popen[bytes] | None = None
        self._containers: list[Path] = []

    def start(self) -> None:
        """Start without waiting, even while a killed store's movers still end. The store dies with this process."""
        container = self._memory.new_container()
        self._containers.append(container)
        enter = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _ENTER_CGROUP, str(container / "cgroup.procs")]
        with self.place.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*enter, str(KVTIER_STORE), "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        """Return once it serves its pool.

        Raises StoreFailed when it ends before, or is not ready in READY_DEADLINE_S.
        """
        deadline = time.monotonic() + READY_DEADLINE_S
        while not self._answers():
            self._schedule_attendant(os.SCHED_IDLE)
            if self._process is None or self._process.poll() is not None:
                raise StoreFailed(f"the store ended by itself; its log ends with:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise StoreFailed(f"not ready in {READY_DEADLINE_S:.0f} s; its log ends with:\n{self._log_tail()}")
            time.sleep(POLL_S)

    def kill(self, *, alone: bool = False) -> None:
        """kill -9 of the index process, and as a container's end of all others with it; return when it is reaped.

        Killed `alone`, it takes the movers with it as their parent, and its attendant ends when it notices.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            if not alone:
                self._memory.kill_container(self._containers[-1])

    def processes_in_the_kernel(self) -> list[int]:
        """Those of the last store's processes that wait for a device's answer."""
        return [pid for pid in self._memory.members(self._containers[-1]) if _waits_for_device(pid)]

    def bury(self) -> None:
        """Remove the containers of killed stores.

        Raises TimeoutError when a process outlives its store.
        """
        running = [] if self._process is None else [self._containers.pop()]
        while self._containers:
            self._memory.remove_container(self._containers.pop())
        self._containers = running

    def wait_for_device(self) -> bool:
        """Whether the nvme device is in use by READY_DEADLINE_S: on a busy machine it may open after the pools."""
        self._schedule_attendant(os.SCHED_OTHER)
        deadline = time.monotonic() + READY_DEADLINE_S
        while self.place.device_state() != "ready":
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _schedule_attendant(self, policy: int) -> None:
        """With SCHED_IDLE it runs only when nothing else does: its start costs more than the store's."""
        for pid in self._memory.members(self._containers[-1]):
            with contextlib.suppress(OSError):  # it has just ended
                if b"kvtier_agent.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.sched_setscheduler(pid, policy, os.sched_param(0))

    def _answers(self) -> bool:
        """Whether a client that comes now is served; HTTP would do, but for a killed store's attendant."""
        with Clients(self.place.sockets) as clients:
            return all(clients.answers(pool) for pool in POOLS)

    def _log_tail(self) -> str:
        return "\n".join(self.place.log.read_text(errors="replace").splitlines()[-25:])


def _waits_for_device(pid: int) -> bool:
    """Whether a thread cannot be interrupted, or waits for FUSE, where it can until it is killed."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "D" or (task / "wchan").read_text() == "request_wait_answer":
                return True
    return False


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
