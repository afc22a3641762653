"""A device that answers long after the deadline, and readers killed meanwhile: misses by the deadline, nothing wrong.

The device holds its answers back until the test lets go, so that "late" does not depend on the machine's speed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dev.faults.rules import Kind, Rules
from tests.chaos.faulty import Faulty, open_faulty, wait_until
from tests.chaos.memory_cgroup import CgroupUnavailable

NEVER: Final = Rules(delay_s={Kind.READ: 3600.0})


@pytest.fixture(params=["folder", "disk"])
def faulty(place: Path, request: pytest.FixtureRequest) -> Iterator[Faulty]:
    """A store whose device answers no read; some were asked for, and were misses by their deadline."""
    try:
        opened = open_faulty(place, random.Random(9), raw=request.param == "disk")
        with opened as found:
            found.device.set(NEVER)
            for stretch in found.scene.ledger.stretches()[:4]:
                assert found.blocks_by_the_deadline(stretch) == 0
            assert found.device.state().waiting > 0
            yield found
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def let_go(faulty: Faulty) -> None:
    """Let the device answer, late, and be well from now on."""
    faulty.device.heal()
    faulty.device.release()
    wait_until(lambda: faulty.device.state().waiting == 0, "the device to answer")


def test_reads_past_the_deadline_serve_the_right_bytes_once_they_come(faulty: Faulty) -> None:
    let_go(faulty)
    faulty.wait_until_whole()


def test_killed_reader_costs_its_reads_alone(faulty: Faulty) -> None:
    wait_until(lambda: bool(faulty.scene.processes_in_the_kernel()), "a reader to wait for the device")
    for reader in faulty.scene.processes_in_the_kernel():
        os.kill(reader, signal.SIGKILL)
    assert faulty.blocks_by_the_deadline(faulty.scene.ledger.stretches()[-1]) == 0
    let_go(faulty)
    faulty.wait_until_whole()


def test_successor_of_a_killed_store_waits_for_reads_in_the_kernel(faulty: Faulty) -> None:
    wait_until(lambda: bool(faulty.scene.processes_in_the_kernel()), "a reader to wait for the device")
    faulty.scene.kill()
    faulty.scene.start_unready()
    wait_until(lambda: "lock.waiting" in faulty.scene.place.log.read_text(), "the successor to wait for a lock")
    let_go(faulty)
    faulty.scene.wait_ready()
    faulty.wait_until_whole()
