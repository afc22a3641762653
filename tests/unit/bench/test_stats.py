from __future__ import annotations

import pytest
from kvtier_bench.stats import Timings, growth, interleaved, median, percentile


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 50, 5.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.0),
        ([float(n) for n in range(1, 101)], 99, 99.0),
        ([3.0, 1.0, 2.0], 100, 3.0),
    ],
)
def test_percentile_is_a_value_that_occurred(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize("statistic", [median, lambda values: percentile(values, 99)])
def test_statistics_of_nothing_are_refused(statistic: object) -> None:
    assert callable(statistic)
    with pytest.raises(ValueError, match="of no values"):
        statistic([])


def test_speed_is_told_at_the_median() -> None:
    assert Timings((0.5, 1.0, 100.0)).gb_per_s(2_000_000_000) == 2.0


def test_measures_take_turns_in_both_orders() -> None:
    order: list[str] = []

    def measure(name: str, seconds: float) -> object:
        def call(number: int) -> float:
            order.append(f"{name}{number}")
            return seconds + number

        return call

    taken = interleaved({"a": measure("a", 1.0), "b": measure("b", 2.0)}, 3)
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert taken["a"].seconds == (1.0, 2.0, 3.0)
    assert taken["b"].seconds == (2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([50.0] * 40, 0.0),
        ([0.0] * 8 + [50.0] * 32, 0.0),
        ([50.0] * 20 + [900.0] + [50.0] * 19, 0.0),
        ([float(n) for n in range(40)], 24.0),
    ],
    ids=["flat", "risen while warming up", "one odd sample", "steady rise"],
)
def test_growth_ignores_warm_up_and_odd_samples(samples: list[float], expected: float) -> None:
    assert growth(samples) == expected


def test_growth_of_few_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 samples, not 7"):
        growth([1.0] * 7)
