"""A device that fails, is full, read-only, slow or gone: misses and a state that says so, then recovery by itself."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvtier_client.protocol.messages import Reach

from dev.faults.filesystems import empty, fill, small_file_system
from dev.faults.rules import Kind, Rules
from tests.chaos.clients import Clients
from tests.chaos.corpus import lose_memory, restart, store_flushed
from tests.chaos.faulty import DISK_BYTES, DRAM_BYTES, Faulty, open_faulty, wait_until
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.scene import Scene, open_scene
from tests.chaos.workload import SHAPES, decide_chain
from tests.chaos.writer import make_pages, put

PUT_S = 2.0
"""Deadline of puts that a device in trouble cannot flush."""


@pytest.fixture
def rng() -> random.Random:
    return random.Random(11)


@pytest.fixture(params=["folder", "disk"])
def faulty(place: Path, rng: random.Random, request: pytest.FixtureRequest) -> Iterator[Faulty]:
    try:
        opened = open_faulty(place, rng, raw=request.param == "disk")
        with opened as found:
            yield found
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def reaches(scene: Scene, rng: random.Random) -> set[Reach | None]:
    """How far puts get now that ask to be flushed, one of each layout of the first pool."""
    found: set[Reach | None] = set()
    with Clients(scene.place.sockets) as clients:
        for shape in SHAPES[: len(SHAPES) // 2]:
            for plan in decide_chain(rng, shape, []):
                flushed = replace(plan, reach=Reach.FLUSHED)
                found.add(put(clients, scene.ledger, flushed, make_pages(flushed), deadline_s=PUT_S))
    return found


def test_failing_reads_are_misses_until_the_device_is_well(faulty: Faulty) -> None:
    faulty.device.set(Rules(errno={Kind.READ: errno.EIO}))
    verdict = faulty.read()
    assert verdict.wrong == []
    assert verdict.lost_flushed
    faulty.wait_for_state("failed", "gone")
    faulty.device.heal()
    faulty.wait_for_state("ready")
    faulty.wait_until_whole()


def test_failing_writes_leave_puts_in_dram_and_reads_alone(faulty: Faulty, rng: random.Random) -> None:
    faulty.device.set(Rules(errno={Kind.WRITE: errno.EIO}))
    assert reaches(faulty.scene, rng) == {Reach.DRAM}
    faulty.wait_for_state("read_only", "failed")
    faulty.device.heal()
    faulty.wait_for_state("ready")
    faulty.wait_until_whole()
    store_flushed(faulty.scene, rng)


def test_failing_flushes_are_never_acknowledged_as_flushed(faulty: Faulty, rng: random.Random) -> None:
    faulty.device.set(Rules(errno={Kind.FLUSH: errno.EIO}))
    assert Reach.FLUSHED not in reaches(faulty.scene, rng)
    faulty.wait_for_state("read_only")
    faulty.device.heal()
    faulty.wait_for_state("ready")
    store_flushed(faulty.scene, rng)
    lose_memory(faulty.scene)
    faulty.scene.start()
    faulty.wait_until_whole()


def test_read_only_device_is_read_and_written_again_later(faulty: Faulty, rng: random.Random) -> None:
    faulty.device.set(Rules(read_only=True))
    assert reaches(faulty.scene, rng) == {Reach.DRAM}
    faulty.wait_for_state("read_only")
    faulty.wait_until_whole()
    faulty.device.heal()
    faulty.wait_for_state("ready")
    store_flushed(faulty.scene, rng)


def test_device_that_is_gone_comes_back_with_all_it_had(faulty: Faulty, rng: random.Random) -> None:
    faulty.device.set(Rules(gone=True))
    verdict = faulty.read()
    assert verdict.wrong == []
    assert verdict.lost_flushed
    assert reaches(faulty.scene, rng) == {Reach.DRAM}
    faulty.wait_for_state("failed", "gone")
    faulty.device.heal()
    faulty.wait_for_state("ready")
    faulty.wait_until_whole()
    store_flushed(faulty.scene, rng)


@pytest.mark.parametrize("faulty", ["folder"], indirect=True)
def test_device_without_room_is_filled_on_once_it_has_some(faulty: Faulty, rng: random.Random) -> None:
    """What it had may have gone for what is new, as in any cache; what is stored afterwards stays."""
    faulty.device.set(Rules(full_after_bytes=0))
    assert reaches(faulty.scene, rng) == {Reach.DRAM}
    faulty.wait_for_state("full")
    assert faulty.read().wrong == []
    faulty.device.heal()
    faulty.wait_for_state("ready")
    faulty.scene.ledger.keep_only(())
    store_flushed(faulty.scene, rng)
    lose_memory(faulty.scene)
    faulty.scene.start()
    faulty.wait_until_whole()


def test_store_on_a_full_file_system_goes_on_and_grows_once_it_has_room(place: Path, rng: random.Random) -> None:
    try:
        with (
            small_file_system(place, 384 << 20) as folder,
            open_scene(rng, DRAM_BYTES, DISK_BYTES, folder / "media") as scene,
        ):
            scene.start()
            store_flushed(scene, rng)
            fill(folder)
            wait_until(lambda: bool(reaches(scene, rng)) and scene.place.device_state() == "full", "a full device")
            assert scene.read_back(attempts=1).wrong == []
            empty(folder)
            wait_until(lambda: scene.place.device_state() == "ready", "the device to be ready")
            scene.ledger.keep_only(())
            store_flushed(scene, rng)
            lose_memory(scene)
            verdict = restart(scene)
            assert (verdict.wrong, verdict.lost_flushed) == ([], set())
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def test_slow_device_is_left_alone_until_it_answers_again(faulty: Faulty) -> None:
    faulty.device.set(Rules(delay_s={Kind.READ: 3600.0, Kind.WRITE: 3600.0}))
    for stretch in faulty.scene.ledger.stretches()[:4]:
        assert faulty.blocks_by_the_deadline(stretch) == 0
    assert faulty.device.state().waiting > 0
    faulty.wait_for_state("slow", "failed")
    faulty.device.heal()
    faulty.device.release()
    faulty.wait_for_state("ready")
    faulty.wait_until_whole()


def test_device_that_is_gone_at_the_start_joins_later(faulty: Faulty) -> None:
    lose_memory(faulty.scene)
    faulty.device.set(Rules(gone=True))
    faulty.scene.start()
    assert faulty.read().wrong == []
    faulty.device.heal()
    faulty.wait_for_state("ready")
    faulty.wait_until_whole()


def test_late_reads_land_in_no_slot_that_was_given_to_another_page(faulty: Faulty, rng: random.Random) -> None:
    faulty.device.set(Rules(delay_s={Kind.READ: 3600.0}))
    for stretch in faulty.scene.ledger.stretches():
        assert faulty.blocks_by_the_deadline(stretch) == 0
    assert faulty.device.state().waiting > 0
    for _ in range(6):
        reaches(faulty.scene, rng)
    faulty.device.heal()
    faulty.device.release()
    wait_until(lambda: faulty.device.state().waiting == 0, "the device to answer")
    assert faulty.read().wrong == []
    faulty.wait_until_whole()
