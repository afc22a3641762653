"""A device's state from what it does, with time as an argument."""

from __future__ import annotations

import errno

import pytest
from kvtier_agent.store.nvme.health import DeviceState, Health, Retry


@pytest.fixture
def health() -> Health:
    made = Health()
    made.opened(writable=True, now=0.0)
    return made


def _uses(health: Health) -> tuple[bool, bool, bool]:
    return health.readable, health.writable, health.has_room


def test_opened_device_is_ready(health: Health) -> None:
    assert (health.state, health.error, _uses(health)) == (DeviceState.READY, "", (True, True, True))
    assert health.due(100.0) is None


@pytest.mark.parametrize(
    ("number", "state", "uses", "retry"),
    [
        (errno.ENOSPC, DeviceState.FULL, (True, True, False), Retry.ROOM),
        (errno.EROFS, DeviceState.READ_ONLY, (True, False, False), Retry.PROBE),
        (errno.EIO, DeviceState.READ_ONLY, (True, False, False), Retry.PROBE),
        (errno.ENODEV, DeviceState.GONE, (False, False, False), Retry.REOPEN),
    ],
)
def test_write_error_says_what_the_device_is_for(
    health: Health, number: int, state: DeviceState, uses: tuple[bool, bool, bool], retry: Retry
) -> None:
    health.write_failed(number, "why", 10.0)
    assert (health.state, health.error, _uses(health)) == (state, "why", uses)
    assert health.due(10.1) is None
    assert health.due(11.0) is retry
    health.recovered()
    assert _uses(health) == (True, True, True)


def test_bad_spot_is_no_failed_device(health: Health) -> None:
    for _ in range(10):
        health.read_failed(errno.EIO, "spot", 0.0)
        health.read_failed(errno.EIO, "spot", 0.0)
        health.read_succeeded()
    assert health.state is DeviceState.READY


def test_three_reads_that_fail_in_a_row_are_a_failed_device(health: Health) -> None:
    for _ in range(3):
        health.read_failed(errno.EIO, "all", 0.0)
    assert health.state is DeviceState.FAILED


def test_device_that_is_gone_is_so_at_once(health: Health) -> None:
    health.read_failed(errno.ENXIO, "gone", 0.0)
    assert health.state is DeviceState.GONE


def test_late_device_is_neither_read_nor_written(health: Health) -> None:
    health.late("slow", 0.0)
    assert (_uses(health), health.due(1.0)) == ((False, False, False), Retry.PROBE)


def test_tries_grow_further_apart_and_start_anew_with_another_fault(health: Health) -> None:
    health.write_failed(errno.EROFS, "ro", 0.0)
    now, gaps, last = 0.0, [], 0.0
    while now < 60:
        now += 0.1
        if health.due(now) is not None:
            gaps.append(round(now - last, 1))
            last = now
            health.still_bad("ro")
    assert gaps[:5] == pytest.approx([0.5, 1.0, 2.0, 4.0, 8.0], abs=0.15)
    assert max(gaps) <= 15.2
    health.write_failed(errno.ENODEV, "gone", 60.0)
    assert health.due(60.6) is Retry.REOPEN


def test_read_only_device_is_opened_for_reading() -> None:
    health = Health()
    health.opened(writable=False, now=0.0)
    assert _uses(health) == (True, False, False)
    assert "read-only" in health.error
