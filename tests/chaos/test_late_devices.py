"""A device that answers long after the deadline, and readers killed meanwhile: misses by the deadline, nothing wrong.

The device holds its answers back until the test lets go, so that "late" does not depend on the machine's speed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from kvtier_client.client import Client

from dev.faults.device import FaultyFolder
from dev.faults.place import FaultsUnavailable, open_place
from dev.faults.rules import Kind, Rules
from tests.chaos.clients import Clients
from tests.chaos.corpus import lose_memory, store_flushed
from tests.chaos.ledger import Stretch
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.scene import Scene, open_scene

DRAM_BYTES: Final = 256 << 20
DEADLINE_S: Final = 0.3
NEVER: Final = Rules(delay_s={Kind.READ: 3600.0})
PATIENCE_S: Final = 120.0


@pytest.fixture
def rng() -> random.Random:
    return random.Random(9)


@pytest.fixture
def place() -> Iterator[Path]:
    try:
        opened = open_place()
        with opened as folder:
            yield folder
    except FaultsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def device(place: Path) -> Iterator[FaultyFolder]:
    with FaultyFolder(place) as folder:
        yield folder


@pytest.fixture
def scene(device: FaultyFolder, rng: random.Random) -> Iterator[Scene]:
    """A store whose pages lie on the faulty device alone."""
    try:
        opened = open_scene(rng, DRAM_BYTES, media=device.folder / "media")
        with opened as scene:
            scene.start()
            store_flushed(scene, rng)
            lose_memory(scene)
            scene.start()
            yield scene
            device.heal()
            device.release()
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def get_blocks(client: Client, stretch: Stretch) -> int:
    """How many blocks are served by a deadline that the device lets pass."""
    shape, chain, _ = stretch
    with client.get(shape.fingerprint, chain, pages=shape.pages, deadline_s=DEADLINE_S) as held:
        return held.blocks


def read_late(scene: Scene, device: FaultyFolder) -> None:
    """Ask for pages that the device does not deliver in time: each call returns without them."""
    device.set(NEVER)
    with Clients(scene.place.sockets) as clients:
        for stretch in scene.ledger.stretches()[:4]:
            assert get_blocks(clients.of(stretch.shape), stretch) == 0
    assert device.state().waiting > 0


def test_reads_past_the_deadline_are_misses_and_serve_the_right_bytes_once_they_come(
    scene: Scene, device: FaultyFolder
) -> None:
    read_late(scene, device)
    device.heal()
    device.release()
    wait_until(lambda: device.state().waiting == 0)
    assert scene.read_back().wrong == []


def test_killed_reader_costs_its_reads_alone(scene: Scene, device: FaultyFolder) -> None:
    read_late(scene, device)
    wait_until(lambda: bool(scene.processes_in_the_kernel()))
    for reader in scene.processes_in_the_kernel():
        os.kill(reader, signal.SIGKILL)
    with Clients(scene.place.sockets) as clients:
        stretch = scene.ledger.stretches()[-1]
        assert get_blocks(clients.of(stretch.shape), stretch) == 0
    device.heal()
    device.release()
    wait_until(lambda: not scene.processes_in_the_kernel())
    assert scene.read_back().wrong == []


def test_successor_of_a_killed_store_waits_for_reads_in_the_kernel(scene: Scene, device: FaultyFolder) -> None:
    read_late(scene, device)
    wait_until(lambda: bool(scene.processes_in_the_kernel()))
    scene.kill()
    scene.start_unready()
    wait_until(lambda: "lock.waiting" in scene.place.log.read_text())
    device.heal()
    device.release()
    scene.wait_ready()
    verdict = scene.read_back()
    assert (verdict.wrong, verdict.lost_flushed) == ([], set())
