"""Runs scenarios one after the other; what one cannot do never stops the next."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

from kvtier_bench.context import Options, Scenario, open_context
from kvtier_bench.figures import CannotRun, Figure


def run_all(scenarios: Sequence[Scenario], options: Options, say: Callable[[str], None]) -> list[Figure]:
    """Figures of all scenarios; every key of each is among them, measured or with its reason."""
    figures: list[Figure] = []
    for number, scenario in enumerate(scenarios, 1):
        say(f"[{number}/{len(scenarios)}] {scenario.name}: {scenario.what}")
        began = time.monotonic()
        figures += run_one(scenario, options, say)
        say(f"  took {time.monotonic() - began:.0f} s")
    return figures


def run_one(scenario: Scenario, options: Options, say: Callable[[str], None]) -> list[Figure]:
    """Figures of one scenario. An unexpected fault is a reason too, and its traceback is said."""
    figures: list[Figure] = []
    reason = "the scenario ended without it"
    try:
        with open_context(options, say) as context:
            for figure in scenario.run(context):
                figures.append(figure)
                say(f"  {describe(figure)}")
    except CannotRun as error:
        reason = str(error)
    except Exception as error:  # whatever one scenario meets, the others are still measured
        reason = f"{type(error).__name__}: {error}"
        say(traceback.format_exc())
    measured = {figure.key for figure in figures}
    for key in scenario.keys:
        if key not in measured:
            figures.append(Figure(key, scenario.what, None, reason=reason))
            say(f"  {key}: not measured: {reason}")
    return figures


def describe(figure: Figure) -> str:
    """One line for people while the bench runs."""
    if figure.value is None:
        return f"{figure.key}: not measured: {figure.reason}"
    beside = f" ({figure.beside})" if figure.beside else ""
    return f"{figure.key} = {figure.value:.4g} {figure.unit}{beside}"
