"""How often a client tries an agent that fails."""

from __future__ import annotations

from kvtier_client.outage import LONGEST_PAUSE_S, Outage


def test_first_failure_calls_for_no_pause() -> None:
    outage = Outage()
    outage.failed(began=0.0, now=1.0)
    assert outage.admits(1.0)


def test_failures_in_a_row_lengthen_the_pause_up_to_the_longest() -> None:
    outage = Outage()
    now = 0.0
    pauses = []
    for _ in range(20):
        outage.failed(began=now, now=now)
        before = now
        while not outage.admits(now):
            now += 0.001
        pauses.append(now - before)
    assert pauses[0] == 0
    assert 0.03 < pauses[1] < 0.06 < pauses[3]
    assert 0.7 * LONGEST_PAUSE_S < pauses[-1] <= LONGEST_PAUSE_S + 0.01


def test_attempts_that_failed_together_count_once() -> None:
    outage = Outage()
    for _ in range(8):
        outage.failed(began=0.0, now=1.0)
    assert outage.admits(1.0)


def test_one_call_tries_while_the_others_wait_for_its_outcome() -> None:
    outage = Outage()
    outage.failed(0.0, 0.0)
    outage.failed(0.0, 0.0)
    assert outage.admits(10.0)
    assert not outage.admits(10.001)


def test_success_ends_the_outage() -> None:
    outage = Outage()
    outage.failed(0.0, 0.0)
    outage.failed(0.0, 0.0)
    outage.succeeded()
    assert outage.admits(0.0)
    assert not outage.ongoing
