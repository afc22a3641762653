"""A store as people run it without a cluster: `kvtier-store --config FILE`, its arena on tmpfs."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kvtier_client import Client
from kvtier_client.protocol.messages import LAYOUT_BYTES

KVTIER_STORE = Path(sys.executable).with_name("kvtier-store")
START_DEADLINE_S = 60.0
END_DEADLINE_S = 30.0
PRIVATE_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def can_bind_mount() -> bool:
    """Whether this process may make a read-only bind mount in a mount namespace of its own."""
    probe = [*PRIVATE_MOUNTS, "sh", "-c", "mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"]
    return subprocess.run(probe, check=False, capture_output=True, timeout=30).returncode == 0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RealStore:
    """One configuration, and the processes that serve it one after the other."""

    def __init__(self, folder: Path, arena: Path, dram: str, nvme: str, read_only_mount: bool) -> None:
        self.command: list[str | Path] = [KVTIER_STORE, "--config", folder / "store.yaml"]
        self.socket = folder / "pool.sock"
        self._log = folder / "store.log"
        (folder / "nvme").mkdir()
        pool = {"name": "test", "uid": "pool-1", "dramQuota": dram, "nvmeQuota": nvme, "socket": str(self.socket)}
        pool["eviction"] = "lru"  # so that what a test stores pushes out what it stored before
        config: dict[str, Any] = {
            "arena": {"path": str(arena), "capacity": dram},
            "nvme": {"capacity": nvme, "devices": [{"name": "d0", "path": str(folder / "nvme")}]},
            "pools": [pool],
            "http": {"port": free_port()},
        }
        if read_only_mount:
            client_path = folder / "arena-for-clients"
            client_path.mkdir()
            config["arena"]["clientPath"] = str(client_path)
            mounts = 'mount --bind "$0" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
            self.command = [*PRIVATE_MOUNTS, "sh", "-c", mounts, arena, client_path, *self.command]
        (folder / "store.yaml").write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._serves():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as the kernel's out-of-memory killer would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_DEADLINE_S)

    def stop(self) -> None:
        """End it as Kubernetes does, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def _serves(self) -> bool:
        with Client(self.socket, deadline_s=1) as client:
            client.lookup(bytes(LAYOUT_BYTES), [bytes(32)])
            return not client.misses


@contextmanager
def real_store(
    folder: Path, *, dram: str = "64Mi", nvme: str = "256Mi", read_only_mount: bool = False
) -> Iterator[RealStore]:
    """A store that serves, ended at the end with its arena.

    With `read_only_mount` it opens clients' descriptors through one, in a mount namespace of its own, as in a cluster.
    """
    arena = Path(tempfile.mkdtemp(prefix="kvtier-test-", dir="/dev/shm"))
    store = RealStore(folder, arena, dram, nvme, read_only_mount)
    try:
        store.start()
        yield store
    finally:
        store.stop()
        shutil.rmtree(arena)
