"""A store whose nvme device is a faulty one: a folder, or a disk; and waits for what it does by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.faults.device import FaultyFolder, open_disk
from tests.chaos.clients import Clients
from tests.chaos.corpus import lose_memory, store_flushed
from tests.chaos.ledger import Stretch, Verdict
from tests.chaos.readback import read_back
from tests.chaos.scene import Scene, open_scene
from tests.chaos.store_process import READY_DEADLINE_S

DRAM_BYTES: Final = 256 << 20
DISK_BYTES: Final = 512 << 20
DEADLINE_S: Final = 0.3
"""Of gets that are to be misses."""
PATIENCE_S: Final = 2 * READY_DEADLINE_S


@dataclass(frozen=True)
class Faulty:
    """The store's scene and its device."""

    scene: Scene
    device: FaultyFolder

    def wait_for_state(self, *states: str) -> None:
        """Return once the store says that the device is in one of these states.

        What it says is of a moment ago: wait for the trouble before the cure.
        """
        wait_until(lambda: self.scene.place.device_state() in states, f"the device to be {' or '.join(states)}")

    def read(self) -> Verdict:
        """The verdict on everything, each chain asked for once; all stays promised."""
        with Clients(self.scene.place.sockets) as clients:
            return read_back(clients, self.scene.ledger, self.scene.ledger.stretches(), attempts=1)

    def wait_until_whole(self) -> None:
        """Return once every flushed page is served again; nothing may be wrong on the way."""

        def is_whole() -> bool:
            verdict = self.read()
            assert verdict.wrong == []
            return not verdict.lost_flushed

        wait_until(is_whole, "everything to be served again")

    def blocks_by_the_deadline(self, stretch: Stretch) -> int:
        """How many blocks a get brings that does not wait long."""
        shape, chain, _ = stretch
        with (
            Clients(self.scene.place.sockets) as clients,
            clients.of(shape).get(shape.fingerprint, chain, pages=shape.pages, deadline_s=DEADLINE_S) as held,
        ):
            return held.blocks


@contextmanager
def open_faulty(place: Path, rng: random.Random, *, raw: bool) -> Iterator[Faulty]:
    """A store that serves, and whose pages lie on the faulty device alone.

    Raises FaultsUnavailable, CgroupUnavailable.
    """
    with ExitStack() as stack:
        device = stack.enter_context(FaultyFolder(place))
        disk = stack.enter_context(open_disk(device, DISK_BYTES)) if raw else None
        media = None if raw else device.folder / "media"
        scene = stack.enter_context(open_scene(rng, DRAM_BYTES, DISK_BYTES, media, disk))
        stack.callback(device.release)
        stack.callback(device.heal)
        scene.start()
        store_flushed(scene, rng)
        lose_memory(scene)
        scene.start()
        yield Faulty(scene, device)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Return once it holds; fail when that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
