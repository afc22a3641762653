"""Clients that load a store while something else is measured: `python -m kvtier_bench.load JOB`.

A job is a JSON object. When stdin says `stop`, the answer is one JSON line: seconds of every call by kind, and bytes.
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from kvtier_client.client import Client

from kvtier_bench.memory import touched_memory
from kvtier_bench.rival import end, read_answer, start_module
from kvtier_bench.workload import LAYOUT, Payloads, chain_hashes

_KEPT: Final = 200_000
"""Call times that a client remembers of each kind, the latest."""


@dataclass(frozen=True)
class Job:
    """What one client does until it is told to stop."""

    socket: str
    page_bytes: int
    chain_blocks: int
    read_share: float
    """Of calls that are `get_into` of a chain drawn from `chains`; the others put a new chain."""
    chains: int
    """Chains with the seeds 0 to this, which the bench has put."""
    seed: int
    pause_s: float = 0.0
    """After each call."""
    remember: bool = False
    """Whether chains that this client has put are read too."""


@dataclass
class Tally:
    """What it did."""

    get_s: list[float] = field(default_factory=list)
    put_s: list[float] = field(default_factory=list)
    got_pages: int = 0
    put_pages: int = 0
    asked_pages: int = 0
    wrong_pages: int = 0
    misses: dict[str, int] = field(default_factory=dict)


class Worker:
    """One client's loop."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._client = Client(job.socket, deadline_s=30.0, put_deadline_s=30.0)
        self._payloads = Payloads(job.page_bytes)
        self._random = random.Random(job.seed)
        memory = touched_memory(job.page_bytes * job.chain_blocks)
        self._destination = list(memory.reshape(job.chain_blocks, job.page_bytes))
        self._seeds = list(range(job.chains))
        self._next_seed = 1_000_000 * (1 + job.seed)
        self.tally = Tally()

    def step(self) -> None:
        """One call."""
        if self._seeds and self._random.random() < self._job.read_share:
            self._read(self._random.choice(self._seeds))
        else:
            self._write()
        time.sleep(self._job.pause_s)

    def finish(self) -> None:
        """Note what the client counted, and close it."""
        self.tally.misses = dict(self._client.misses)
        self._client.close()

    def _read(self, seed: int) -> None:
        hashes = chain_hashes(seed, self._job.chain_blocks)
        began = time.perf_counter()
        restored = self._client.get_into(LAYOUT, hashes, self._destination)
        self._note(self.tally.get_s, time.perf_counter() - began)
        self.tally.asked_pages += len(hashes)
        self.tally.got_pages += restored.blocks
        views = [page.data for page in self._destination[: restored.blocks]]
        self.tally.wrong_pages += self._payloads.wrong(hashes[: restored.blocks], views)

    def _write(self) -> None:
        pages = self._payloads.pages(chain_hashes(self._next_seed, self._job.chain_blocks))
        began = time.perf_counter()
        stored = self._client.put(LAYOUT, None, pages)
        self._note(self.tally.put_s, time.perf_counter() - began)
        self.tally.put_pages += stored.stored_pages
        if self._job.remember:
            self._seeds = [*self._seeds[-10_000:], self._next_seed]
        self._next_seed += 1

    def _note(self, times: list[float], seconds: float) -> None:
        if len(times) >= _KEPT:
            del times[: _KEPT // 2]
        times.append(seconds)


class Load:
    """Clients that run. A context manager: leaving it kills them."""

    def __init__(self, jobs: list[Job], log: Path) -> None:
        """Start one process for each job."""
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        for job in jobs:
            self._processes.append(
                start_module("kvtier_bench.load", [json.dumps(asdict(job))], log, Path(sys.executable))
            )

    def __enter__(self) -> Load:
        for process in self._processes:
            read_answer(process, "a client", self._log)
        for process in self._processes:
            self._tell(process, "go")
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            end(process)

    def stop(self) -> list[Tally]:
        """Let them finish their calls; what each has done.

        Raises CannotRun when one has ended.
        """
        for process in self._processes:
            self._tell(process, "stop")
        return [Tally(**read_answer(process, "a client", self._log)) for process in self._processes]

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], word: str) -> None:
        assert process.stdin is not None
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()


def main() -> None:
    """Work from `go` to `stop`."""
    logging.getLogger("kvtier.client").setLevel(logging.ERROR)
    worker = Worker(Job(**json.loads(sys.argv[1])))
    print('"ready"', flush=True)
    sys.stdin.readline()
    stopped = threading.Thread(target=sys.stdin.readline, daemon=True)
    stopped.start()
    while stopped.is_alive():
        worker.step()
    worker.finish()
    print(json.dumps(asdict(worker.tally)), flush=True)


if __name__ == "__main__":
    main()
