"""A store to measure: a `kvtier-store` process with a YAML file, on folders of its own."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from kvtier_client.client import Client
from kvtier_client.protocol.messages import LAYOUT_BYTES
from prometheus_client.parser import text_string_to_metric_families

from kvtier_bench import kernel
from kvtier_bench.iogroup import IoGroup
from kvtier_bench.peers import free_port

READY_S: Final = 120.0
STOP_S: Final = 60.0
METRICS_S: Final = 60.0
_AGE: Final = "kvtier_snapshot_age_seconds"
KVTIER_STORE: Final = Path(sys.executable).with_name("kvtier-store")
_JOIN: Final = 'echo $$ > "$0" && exec "$@"'


class StoreFailed(Exception):
    """The store did not do what the bench needs of it; the message ends with the tail of its log."""


@dataclass(frozen=True)
class PoolSpec:
    """One pool. `nvme_bytes` 0: it has dram only."""

    name: str
    dram_bytes: int
    nvme_bytes: int = 0


@dataclass(frozen=True)
class StoreSpec:
    """A store. Its capacities are the sums of its pools' quotas."""

    pools: tuple[PoolSpec, ...]
    devices: tuple[Path, ...] = ()
    """Folders."""
    movers: int = 2
    options: tuple[tuple[str, Any], ...] = ()
    """Further settings of the YAML file's top level."""


def one_pool(dram_bytes: int, nvme_bytes: int = 0, devices: tuple[Path, ...] = ()) -> StoreSpec:
    """A store with the pool `main`, on `devices`."""
    return StoreSpec((PoolSpec("main", dram_bytes, nvme_bytes),), devices)


class Store:
    """A context manager: leaving it kills the store and removes its arena. Not thread-safe."""

    def __init__(self, spec: StoreSpec, folder: Path, arena: Path, group: IoGroup | None = None) -> None:
        """Nothing runs yet. `folder`, new, is for sockets and the log; `arena`, new, is on a tmpfs."""
        self.spec = spec
        self.arena = arena
        self._folder = folder
        self._group = group
        port = free_port()
        self._metrics_url = f"http://127.0.0.1:{port}/metrics"
        self._process: subprocess.Popen[bytes] | None = None
        for made in (folder, arena, *spec.devices):
            made.mkdir(parents=True, exist_ok=True)
        self._config = folder / "store.yaml"
        self._config.write_bytes(msgspec.yaml.encode(_config(spec, folder, arena, port)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.arena, ignore_errors=True)

    def socket(self, pool: str = "main") -> Path:
        """The pool's listening socket."""
        return self._folder / f"{pool}.sock"

    def client(self, pool: str = "main", deadline_s: float = 30.0, staging_bytes: int = 64 << 20) -> Client:
        """A new client of the pool, patient unless told otherwise."""
        return Client(self.socket(pool), deadline_s=deadline_s, put_deadline_s=60.0, staging_bytes=staging_bytes)

    def start(self) -> None:
        """Start it without waiting. It dies with this process."""
        join = ["sh", "-c", _JOIN, str(self._group.procs)] if self._group else []
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *join, str(KVTIER_STORE), "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self, pools: Sequence[str] = ()) -> None:
        """Return once it serves `pools`, or all of them.

        Raises StoreFailed.
        """
        deadline = time.monotonic() + READY_S
        for pool in pools or [pool.name for pool in self.spec.pools]:
            while not self.serves(pool):
                if self._process is None or self._process.poll() is not None:
                    raise StoreFailed(f"the store ended by itself:\n{self.log_tail()}")
                if time.monotonic() > deadline:
                    raise StoreFailed(f"pool {pool} is not served after {READY_S:.0f} s:\n{self.log_tail()}")
                time.sleep(0.02)

    def serves(self, pool: str) -> bool:
        """Whether a client that comes now is answered."""
        with self.client(pool, deadline_s=5.0) as client:
            client.lookup(bytes(LAYOUT_BYTES), [bytes(32)])
            return not client.misses

    def stop(self) -> None:
        """SIGTERM: it closes and flushes what it has.

        Raises StoreFailed when it does not end.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise StoreFailed(f"still there {STOP_S:.0f} s after SIGTERM:\n{self.log_tail()}") from None
            self._process = None

    def kill(self) -> None:
        """kill -9; return when it is reaped. May be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty_arena(self) -> None:
        """While it does not run: take away what lies in memory, as a restart of the node does."""
        for entry in self.arena.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def restart_cold(self) -> None:
        """Stop it, empty the arena, start it, wait until it serves: all is on nvme now."""
        self.stop()
        self.empty_arena()
        self.start()
        self.wait_ready()

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return kernel.read_tree(self._process.pid) if self._process else []

    def io(self) -> kernel.ProcessIo:
        """What its processes have read and written since they began, by the kernel's account."""
        return kernel.read_process_io(self.pids)

    def memory_bytes(self) -> int:
        """Memory of its processes, without the arena and clients' staging."""
        return kernel.read_own_memory(self.pids, [self.arena])

    def metrics(self) -> dict[str, float]:
        """Each metric's samples as they are now, summed over labels.

        Waits until the process that serves them is up and has a snapshot of after this call. Raises StoreFailed.
        """
        began = time.monotonic()
        while time.monotonic() - began < METRICS_S:
            with contextlib.suppress(OSError), urllib.request.urlopen(self._metrics_url, timeout=5) as answer:
                totals = sum_samples(answer.read().decode())
                if totals.get(_AGE, METRICS_S) < time.monotonic() - began:
                    return totals
            time.sleep(0.1)
        raise StoreFailed(f"no metrics of now in {METRICS_S:.0f} s:\n{self.log_tail()}")

    def wait_quiet(self, quiet_s: float = 3.0, longest_s: float = 120.0) -> float:
        """Return once it has written nothing for `quiet_s`; the seconds waited.

        Raises StoreFailed when it goes on for `longest_s`.
        """
        began = last_change = time.monotonic()
        written = self.io().write_bytes
        while time.monotonic() - last_change < quiet_s:
            if time.monotonic() - began > longest_s:
                raise StoreFailed(f"still writing after {longest_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.2)
            now = self.io().write_bytes
            if now != written:
                written, last_change = now, time.monotonic()
        return time.monotonic() - began

    def log_tail(self) -> str:
        """The end of what every start has said."""
        text = (self._folder / "store.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])


@contextlib.contextmanager
def running(store: Store) -> Iterator[Store]:
    """The store, started and serving, within the block."""
    with store:
        store.start()
        store.wait_ready()
        yield store


def sum_samples(text: str) -> dict[str, float]:
    """Every metric of a Prometheus page, summed over its labels. Pure."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def drop_page_cache() -> bool:
    """Forget clean cached file pages, of the whole machine; False when this is not allowed."""
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def _config(spec: StoreSpec, folder: Path, arena: Path, port: int) -> dict[str, Any]:
    nvme_bytes = sum(pool.nvme_bytes for pool in spec.pools)
    config: dict[str, Any] = {
        "arena": {"path": str(arena), "capacity": str(sum(pool.dram_bytes for pool in spec.pools))},
        "pools": [
            {
                "name": f"bench/{pool.name}",
                "uid": f"0be2c400-0000-4000-8000-{number:012d}",
                "dramQuota": str(pool.dram_bytes),
                "socket": str(folder / f"{pool.name}.sock"),
            }
            | ({"nvmeQuota": str(pool.nvme_bytes)} if pool.nvme_bytes else {})
            for number, pool in enumerate(spec.pools)
        ],
        "http": {"port": port},
        "movers": spec.movers,
        **dict(spec.options),
    }
    if nvme_bytes:
        devices = [{"name": f"disk{number}", "path": str(path)} for number, path in enumerate(spec.devices)]
        config["nvme"] = {"capacity": str(nvme_bytes), "devices": devices}
    return config
