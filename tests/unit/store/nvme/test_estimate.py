"""What devices are measured at, and what that makes a pool offer."""

from __future__ import annotations

import pytest
from kvtier_agent.store.nvme.estimate import EngineSpeed, Estimator, Gate, breakeven_blocks, offered_blocks

MIB = 1 << 20
ENGINE = EngineSpeed(block_tokens=16, bytes_per_token=64_000, tokens_per_s=((0, 8_000.0), (64_000, 2_000.0)))


def _use(estimate: Estimator, start: float, stop: float, bandwidth: float, in_flight: int = 4) -> float:
    """Requests of 4 MiB, so many at once, each as long as the bandwidth says; when the last is back."""
    took = 4 * MIB * in_flight / bandwidth
    now = start
    while now < stop:
        for _ in range(in_flight):
            estimate.begun(4 * MIB, now)
        now += took
        for _ in range(in_flight):
            estimate.ended(4 * MIB, now)
    return now


def test_unused_device_has_no_figure() -> None:
    assert Estimator().bandwidth(10.0) is None


def test_bandwidth_is_of_all_in_flight_together() -> None:
    estimate = Estimator()
    end = _use(estimate, 0.0, 5.0, 500e6)
    assert estimate.bandwidth(end) == pytest.approx(500e6, rel=0.01)
    assert estimate.bandwidth(end + 1000) == pytest.approx(500e6, rel=0.01)


def test_device_that_is_throttled_shows_within_ten_seconds() -> None:
    estimate = Estimator()
    now = _use(estimate, 0.0, 20.0, 1000e6)
    now = _use(estimate, now, now + 10.0, 20e6)
    assert estimate.bandwidth(now) == pytest.approx(20e6, rel=0.25)


def test_read_that_does_not_come_back_counts_while_it_is_away() -> None:
    estimate = Estimator()
    now = _use(estimate, 0.0, 5.0, 1000e6)
    estimate.begun(4 * MIB, now)
    slow = estimate.bandwidth(now + 10.0)
    assert slow is not None
    assert slow < 20e6


def test_small_probes_after_the_throttle_bring_the_figure_back() -> None:
    estimate = Estimator()
    now = _use(estimate, 0.0, 10.0, 10e6)
    for _ in range(12):
        now += 2.0
        now = _use(estimate, now, now + 0.001, 500e6, in_flight=1)
    assert estimate.bandwidth(now) == pytest.approx(500e6, rel=0.3)


def test_queue_is_what_is_in_flight_over_the_bandwidth() -> None:
    estimate = Estimator()
    now = _use(estimate, 0.0, 5.0, 400 * MIB)
    for _ in range(10):
        estimate.begun(4 * MIB, now)
    assert estimate.queue_s(now) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("bandwidth", "queue_s", "offered"),
    [(1e9, 0.0, 100), (5e8 + 3e7, 0.0, 100), (4e8, 0.0, 10), (1e9, 5.0, 10)],
    ids=["fast", "just fast enough", "slow", "queued"],
)
def test_what_pays_is_offered(bandwidth: float, queue_s: float, offered: int) -> None:
    assert offered_blocks(100, 10, ENGINE, bandwidth, queue_s) == offered


def test_deep_blocks_pay_where_shallow_ones_do_not() -> None:
    """The engine slows down with depth."""
    assert offered_blocks(100, 0, ENGINE, 4e8, 0.0) == 0
    assert offered_blocks(4000, 0, ENGINE, 4e8, 0.0) == 4000


@pytest.mark.parametrize(("bandwidth", "queue_s"), [(4e8, 0.0), (1e9, 1.0)], ids=["slow", "queued"])
def test_breakeven_is_the_least_prefix_that_is_offered(bandwidth: float, queue_s: float) -> None:
    blocks = breakeven_blocks(ENGINE, bandwidth, queue_s)
    assert 100 < blocks < 4000
    least = int(blocks)
    assert offered_blocks(least, 0, ENGINE, bandwidth, queue_s) == least
    assert offered_blocks(least - 1, 0, ENGINE, bandwidth, queue_s) == 0


def test_breakeven_of_a_fast_device_is_one_block_and_of_a_stalled_one_infinite() -> None:
    assert breakeven_blocks(ENGINE, 1e12, 0.0) == 1
    assert breakeven_blocks(ENGINE, 1.0, 0.0) == float("inf")


def test_closed_gate_lets_a_small_share_through() -> None:
    gate = Gate()
    offers = [gate.decide(100, 10, 0.1, 100 + step * 0.1) for step in range(100)]
    assert (offers.count(100), offers.count(10), gate.closed) == (4, 96, True)
    assert offers[0] == 10
    assert gate.decide(100, 100, 0.1, 200.0) == 100
    assert not gate.closed


@pytest.mark.parametrize(("takes_s", "probes"), [(1.0, 11), (2.0, 5), (60.0, 3)], ids=["quick", "slow", "endless"])
def test_closed_gate_probes_a_slow_tier_less_often(takes_s: float, probes: int) -> None:
    gate = Gate()
    offers = [gate.decide(100, 10, takes_s, float(step)) for step in range(60)]
    assert offers.count(100) == probes
