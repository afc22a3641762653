"""The crash test's scene: a store in a pod's memory limit, two writers, two bystanders, and the ledger.

Everything that it starts or makes is gone when it is left, also after an interrupt.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvtier_client.protocol.messages import Reach

from tests.chaos import memory_cgroup
from tests.chaos.bystanders import Bystanders
from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger, Stretch, Verdict, draw
from tests.chaos.memory_cgroup import PodMemory
from tests.chaos.readback import ATTEMPTS, read_back
from tests.chaos.store_process import StorePlace, StoreProcess, free_port
from tests.chaos.workload import POOLS, SHAPES, PutPlan, decide_chain
from tests.chaos.writer import Nobody, Witness, Writer, make_pages, put

log = logging.getLogger("kvtier.chaos")

OUT: Final = Path(__file__).resolve().parents[2] / ".out"
PREFIX: Final = "kvtier-crash"
SHARED_MEMORY: Final = Path("/dev/shm")
DISK: Final = Path("/var/tmp")
WRITERS: Final = 2
MOST_PUTS: Final = 12
"""Of one writer between two kills."""
WAIT_FOR_PUT_S: Final = 30.0
ALONE: Final = 0.25
"""How often a kill takes the store's main process only."""


class Scene:
    """One store and its clients. Made by `open_scene`. One thread may command it."""

    def __init__(
        self,
        place: StorePlace,
        memory: PodMemory,
        rng: random.Random,
        ledger: Ledger,
        witness: Witness,
    ) -> None:
        self.ledger = ledger
        self.place = place
        self.memory = memory
        self.bystanders = Bystanders(place.sockets, place.scratch / "chains", self.ledger)
        self._store = StoreProcess(place, memory)
        self._rng = rng
        self._clients = [Clients(place.sockets) for _ in range(WRITERS)]
        self._writers = [Writer(it, self.ledger, random.Random(rng.random()), witness) for it in self._clients]
        self._put_s = 0.01
        self._ready_s = 1.0

    def store_puts(self, puts: int) -> None:
        """Let the writers store until one of them has begun so many puts; they go on.

        Raises TimeoutError when one ends by itself.
        """
        if not self._start_writers().wait_begun(puts, WAIT_FOR_PUT_S):
            raise TimeoutError(f"a writer had not begun {puts} puts in {WAIT_FOR_PUT_S:.0f} s")

    def close(self) -> None:
        """End every process of the scene, stopped ones too."""
        self.bystanders.end()
        self._store.kill()
        for writer in self._writers:
            writer.join()
        for clients in self._clients:
            clients.close()

    def start(self) -> None:
        """Start the store, while a killed one's movers may still end, and wait until it serves."""
        begin = time.monotonic()
        self.start_unready()
        self.wait_ready()
        self._ready_s = time.monotonic() - begin

    def start_unready(self) -> None:
        """Start the store and do not wait."""
        self._store.start()

    def wait_ready(self) -> None:
        """Return once the store serves and nothing of killed ones is left. Raises StoreFailed, TimeoutError."""
        self._store.wait_ready()
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
        """kill -9 of the store, one time of four of its main process alone; returns the puts that were not answered."""
        for writer in self._writers:
            writer.stop()
        self._store.kill(alone=self._rng.random() < ALONE)
        return [plan for plan in [writer.join() for writer in self._writers] if plan is not None]

    def processes_in_the_kernel(self) -> list[int]:
        """The store's processes whose I/O a device does not answer."""
        return self._store.processes_in_the_kernel()

    def bury(self) -> None:
        """Return when nothing of the killed store is left; its container, its files and its mount are free then."""
        self._store.bury()

    def kill_while_recovering(self) -> None:
        """Start the killed store, and kill it mostly before it is ready."""
        self._store.start()
        time.sleep(self._rng.uniform(0, self._ready_s))
        self._store.kill()

    def lose_node_memory(self) -> None:
        """With the store killed: all clients are gone too, and the arena is empty, as after a node's restart."""
        self.bystanders.part()
        self.bury()
        self.place.empty_arena()
        self.ledger.lose_arena()

    def finish_puts(self, unfinished: list[PutPlan]) -> int:
        """Have another client store what the killed store left half done; returns how many of these puts failed.

        A put whose parent went with the node's memory cannot be stored, and is left out.
        """
        possible = [p for p in unfinished if p.parent is None or self.ledger.is_whole(p.shape, p.parent)]
        failed = 0
        with Clients(self.place.sockets) as clients:
            for plan in possible:
                if put(clients, self.ledger, plan, make_pages(plan)) is None:
                    failed += 1
                    misses = dict(clients.of(plan.shape).misses)
                    log.error("a put of %d blocks of %s was not stored: %s", len(plan.blocks), plan.shape.name, misses)
        return failed

    def store_flushed(self) -> int:
        """Store a chain of one layout of each pool, and return how many puts were not acknowledged as flushed."""
        failed = self._store_flushed_once()
        return self._store_flushed_once() if failed and self._store.wait_for_device() else failed

    def _store_flushed_once(self) -> int:
        failed = 0
        with Clients(self.place.sockets) as clients:
            for shape in (self._rng.choice([it for it in SHAPES if it.pool == pool]) for pool in POOLS):
                for plan in decide_chain(self._rng, shape, self.ledger.parents_for(shape)):
                    flushed = replace(plan, reach=Reach.FLUSHED)
                    failed += put(clients, self.ledger, flushed, make_pages(flushed)) is not Reach.FLUSHED
        return failed

    def read_back(self, stretches: Sequence[Stretch] | None = None, attempts: int = ATTEMPTS) -> Verdict:
        """Read these, or all, and compare; what is found lost is no longer expected.

        Where losses are not expected, so with more than one attempt, what is missing is read once more when the
        device is surely in use.
        """
        stretches = self.ledger.stretches() if stretches is None else stretches
        with Clients(self.place.sockets) as clients:
            verdict = read_back(clients, self.ledger, stretches, attempts)
            if attempts > 1 and verdict.lost_flushed and self._store.wait_for_device():
                missing = [it for it in stretches if not verdict.lost_flushed.isdisjoint(it.keys)]
                again = read_back(clients, self.ledger, missing, attempts)
                verdict.lost_flushed = again.lost_flushed
                verdict.wrong += again.wrong
        self.ledger.forgive(verdict.lost_dram | verdict.lost_flushed)
        return verdict

    def read_drawn_and_fresh(self, least_drawn: int) -> tuple[Verdict, Verdict]:
        """The verdicts on at least so many pages, drawn evenly from all, and on what was sent since the last call."""
        stretches, fresh = self.ledger.stretches(), self.ledger.take_fresh()
        drawn = self.read_back(draw(stretches, least_drawn, self._rng))
        return drawn, self.read_back([it for it in stretches if not fresh.isdisjoint(it.blocks)])

    def _start_writers(self) -> Writer:
        """The one of them that the kill waits for."""
        for writer in self._writers:
            writer.start()
        return self._rng.choice(self._writers)


def keep_log(scene: Scene, seed: int) -> None:
    """Copy what the scene's store said to `.out`."""
    OUT.mkdir(exist_ok=True)
    if scene.place.log.exists():
        shutil.copy(scene.place.log, OUT / f"crash-{seed}.log")


def remove_remains() -> None:
    """Remove what runs left that were killed themselves."""
    memory_cgroup.remove_remains(PREFIX)
    for place in (SHARED_MEMORY, DISK):
        for folder in place.glob(f"{PREFIX}-*"):
            if not Path("/proc", folder.name.removeprefix(f"{PREFIX}-").partition("-")[0]).exists():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_scene(
    rng: random.Random,
    dram_bytes: int,
    nvme_bytes: int | None = None,
    media: Path | None = None,
    raw: Path | None = None,
    ledger: Ledger | None = None,
    witness: Witness | None = None,
    *,
    two_devices: bool = False,
) -> Iterator[Scene]:
    """A scene whose store does not run yet; its memory is limited as the operator would.

    Its nvme tier is the block device `raw`, or the folder `media`, or a folder of its own, or two with `two_devices`,
    by default of twice the size of its DRAM. `ledger`: what earlier stores
    promised of what is there. `witness` hears of all that is acknowledged.

    Raises CgroupUnavailable.
    """
    remove_remains()
    own = f"{PREFIX}-{os.getpid()}-"
    with ExitStack() as stack:
        shared_memory = stack.enter_context(tempfile.TemporaryDirectory(prefix=own, dir=SHARED_MEMORY))
        disk = stack.enter_context(tempfile.TemporaryDirectory(prefix=own, dir=DISK))
        place = StorePlace(
            arena=Path(shared_memory) / "arena",
            media=media or Path(disk) / "media",
            scratch=Path(disk) / "scratch",
            dram_bytes=dram_bytes,
            nvme_bytes=nvme_bytes or 2 * dram_bytes,
            http_port=free_port(),
            raw=raw,
            second=Path(disk) / "media-2" if two_devices else None,
        )
        memory = stack.enter_context(PodMemory(Path(shared_memory).name, place.pod_memory_bytes))
        scene = Scene(place, memory, rng, ledger or Ledger(), witness or Nobody())
        stack.callback(scene.close)
        yield scene
