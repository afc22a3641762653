"""The peers' servers on this node, each started by the bench and gone with it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvtier_bench import environment
from kvtier_bench.figures import CannotRun
from kvtier_bench.rival import end, read_answer, start_module

UP_S: Final = 180.0
"""LMCache imports for a minute on a busy machine."""


@contextlib.contextmanager
def mooncake(cache: Path, folder: Path, memory_bytes: int) -> Iterator[str]:
    """A master and a process that gives `memory_bytes`; yields the master's address.

    Raises CannotRun.
    """
    python = environment.peer_python(cache, "mooncake")
    rpc, metrics = free_port(), free_port()
    command = [str(python.with_name("mooncake_master")), f"-rpc_port={rpc}", f"-metrics_port={metrics}"]
    with serving(command, folder / "mooncake_master.log"):
        wait_for_port(rpc, folder / "mooncake_master.log")
        log = folder / "mooncake_host.log"
        address = f"127.0.0.1:{rpc}"
        host = start_module("kvtier_bench.contenders.mooncake", [address, str(memory_bytes)], log, python)
        try:
            read_answer(host, "mooncake's memory", log)
            yield address
        finally:
            end(host)


@contextlib.contextmanager
def redis(folder: Path, memory_bytes: int) -> Iterator[dict[str, str]]:
    """A server without persistence; yields its addresses by `unix` and `tcp`.

    Raises CannotRun.
    """
    program = environment.program("redis-server", "redis-server")
    port, path, log = free_port(), folder / "redis.sock", folder / "redis.log"
    settings = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        str(path),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    with serving([program, *settings, "--maxmemory", str(memory_bytes), "--dir", str(folder)], log):
        wait_for_port(port, log)
        yield {"unix": f"unix://{path}", "tcp": f"redis://127.0.0.1:{port}"}


@contextlib.contextmanager
def lmcache(cache: Path, folder: Path, memory_bytes: int) -> Iterator[str]:
    """A multiprocess server that needs no GPU; yields its address.

    Raises CannotRun.
    """
    python = environment.peer_python(cache, "lmcache")
    ports = [free_port() for _ in range(3)]
    options = ["--port", "--http-port", "--prometheus-port"]
    command = [str(python.with_name("lmcache")), "server", "--supported-transfer-mode", "engine_driven"]
    command += ["--l1-size-gb", str(-(-memory_bytes // 10**9)), "--eviction-policy", "LRU", "--shm-name", folder.name]
    command += [word for pair in zip(options, map(str, ports), strict=True) for word in pair]
    log = folder / "lmcache.log"
    with serving(command, log):
        wait_for_port(ports[0], log)
        yield f"tcp://localhost:{ports[0]}"


@contextlib.contextmanager
def serving(command: list[str], log: Path) -> Iterator[None]:
    """The program runs within the block, and dies with this process."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int, log: Path) -> None:
    """Return once someone listens there.

    Raises CannotRun.
    """
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise CannotRun(f"nobody listens on port {port} after {UP_S:.0f} s: {log.read_text(errors='replace')[-400:]}")


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
