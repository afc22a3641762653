"""The crash test's scene: a store in a pod's memory limit, two writers, two bystanders, and the ledger.

Everything that it starts or makes is gone when it is left, also after an interrupt.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from kvtier_client.client import Client

from tests.chaos import memory_cgroup
from tests.chaos.bystanders import Bystanders
from tests.chaos.ledger import Ledger, Verdict
from tests.chaos.memory_cgroup import PodMemory
from tests.chaos.readback import ATTEMPTS, read_all
from tests.chaos.store_process import StorePlace, StoreProcess, free_port
from tests.chaos.workload import PutPlan
from tests.chaos.writer import Writer, make_pages, put

PREFIX: Final = "kvtier-crash"
SHARED_MEMORY: Final = Path("/dev/shm")
DISK: Final = Path("/var/tmp")
WRITERS: Final = 2
MOST_PUTS: Final = 12
"""Of one writer between two kills."""
WAIT_FOR_PUT_S: Final = 30.0


class Scene:
    """One store and its clients. Made by `open_scene`. One thread may command it."""

    def __init__(self, place: StorePlace, memory: PodMemory, rng: random.Random) -> None:
        self.ledger = Ledger()
        self.place = place
        self.memory = memory
        self.bystanders = Bystanders(place.socket, place.scratch / "chains", self.ledger)
        self._store = StoreProcess(place, memory)
        self._rng = rng
        self._writers = [Writer(place.socket, self.ledger, random.Random(rng.random())) for _ in range(WRITERS)]
        self._put_s = 0.01
        self._ready_s = 1.0

    def close(self) -> None:
        """End every process of the scene, stopped ones too."""
        self.bystanders.end()
        self._store.kill()
        for writer in self._writers:
            writer.close()

    def start(self) -> None:
        """Start the store, while a killed one's movers may still end, and wait until it serves."""
        begin = time.monotonic()
        self._store.start()
        self._store.wait_ready()
        self._ready_s = time.monotonic() - begin
        self._store.bury()

    def store_until_put_in_flight(self) -> bool:
        """Let the writers store, and return at a random moment of one of their puts.

        False when that one ended by itself, for which a store that serves gives no cause.
        """
        chosen = self._start_writers()
        puts = self._rng.randint(1, MOST_PUTS)
        while chosen.wait_begun(puts, WAIT_FOR_PUT_S):
            time.sleep(self._rng.uniform(0, self._put_s))
            if chosen.in_flight:
                self._put_s *= 1.1
                return True
            self._put_s *= 0.9
            puts = chosen.begun + 1
        return False

    def store_and_rest(self) -> bool:
        """Let the writers store, and return when they have rested for a random time of at most 0.3 s.

        False when one of them ended by itself.
        """
        self._start_writers().wait_begun(self._rng.randint(1, MOST_PUTS), WAIT_FOR_PUT_S)
        unanswered = [writer.join() for writer in self._writers]
        time.sleep(self._rng.uniform(0, 0.3))
        return unanswered == [None] * WRITERS

    def kill(self) -> list[PutPlan]:
        """kill -9 of the store; returns the puts that were in flight and not acknowledged."""
        for writer in self._writers:
            writer.stop()
        self._store.kill()
        return [plan for plan in [writer.join() for writer in self._writers] if plan is not None]

    def kill_while_recovering(self) -> None:
        """Start the killed store, and kill it mostly before it is ready."""
        self._store.start()
        time.sleep(self._rng.uniform(0, self._ready_s))
        self._store.kill()

    def lose_node_memory(self) -> None:
        """With the store killed: all clients are gone too, and the arena is empty, as after a node's restart."""
        self.bystanders.part()
        self._store.bury()
        self.place.empty_arena()
        self.ledger.lose_arena()

    def finish_puts(self, unfinished: list[PutPlan]) -> int:
        """Have another client store what the killed store left half done; returns how many of these puts failed.

        A put whose parent went with the node's memory cannot be stored, and is left out.
        """
        possible = [p for p in unfinished if p.parent is None or p.parent in self.ledger.parents_for(p.shape)]
        with closing(self._new_client()) as client:
            return sum(not put(client, self.ledger, plan, make_pages(plan)) for plan in possible)

    def read_back(self, attempts: int = ATTEMPTS) -> Verdict:
        """Read all and compare; what is found lost is no longer expected."""
        with closing(self._new_client()) as client:
            verdict = read_all(client, self.ledger, attempts)
        self.ledger.forgive(verdict.lost_dram | verdict.lost_flushed)
        return verdict

    def _new_client(self) -> Client:
        return Client(str(self.place.socket))

    def _start_writers(self) -> Writer:
        """The one of them that the kill waits for."""
        for writer in self._writers:
            writer.start()
        return self._rng.choice(self._writers)


def remove_remains() -> None:
    """Remove what runs left that were killed themselves."""
    memory_cgroup.remove_remains(PREFIX)
    for place in (SHARED_MEMORY, DISK):
        for folder in place.glob(f"{PREFIX}-*"):
            if not Path("/proc", folder.name.removeprefix(f"{PREFIX}-").partition("-")[0]).exists():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_scene(rng: random.Random, dram_bytes: int) -> Iterator[Scene]:
    """A scene whose store does not run yet; its memory is limited as the operator would.

    Raises CgroupUnavailable.
    """
    remove_remains()
    own = f"{PREFIX}-{os.getpid()}-"
    with ExitStack() as stack:
        shared_memory = stack.enter_context(tempfile.TemporaryDirectory(prefix=own, dir=SHARED_MEMORY))
        disk = stack.enter_context(tempfile.TemporaryDirectory(prefix=own, dir=DISK))
        place = StorePlace(
            arena=Path(shared_memory) / "arena",
            media=Path(disk) / "media",
            scratch=Path(disk) / "scratch",
            dram_bytes=dram_bytes,
            nvme_bytes=4 * dram_bytes,
            http_port=free_port(),
        )
        memory = stack.enter_context(PodMemory(Path(shared_memory).name, place.pod_memory_bytes))
        scene = Scene(place, memory, rng)
        stack.callback(scene.close)
        yield scene
