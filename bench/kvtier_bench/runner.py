"""Runs scenarios one after the other; what one cannot do never stops the next."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kvtier_bench.context import Options, Scenario, open_context
from kvtier_bench.figures import CannotRun, Figure

_LONGEST: Final = 300


def run_all(
    scenarios: Sequence[Scenario], options: Options, say: Callable[[str], None]
) -> Iterator[tuple[Scenario, list[Figure]]]:
    """Each scenario with its figures, as it ends; every key of it is among them, measured or with its reason."""
    for number, scenario in enumerate(scenarios, 1):
        say(f"[{number}/{len(scenarios)}] {scenario.name}: {scenario.what}")
        began = time.monotonic()
        figures = run_one(scenario, options, say)
        say(f"  took {time.monotonic() - began:.0f} s")
        yield scenario, figures


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
        reason = shortened(str(error))
    except Exception as error:  # whatever one scenario meets, the others are still measured
        reason = shortened(f"{type(error).__name__}: {error}")
        say(traceback.format_exc())
    measured = {figure.key for figure in figures}
    for key in scenario.keys:
        if key not in measured:
            figures.append(Figure(key, scenario.what, None, reason=reason))
            say(f"  {key}: not measured: {reason}")
    return figures


def shortened(text: str) -> str:
    """The text in one line, its middle left out where it is long. Pure."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"


def describe(figure: Figure) -> str:
    """One line for people while the bench runs."""
    if figure.value is None:
        return f"{figure.key}: not measured: {figure.reason}"
    beside = f" ({figure.beside})" if figure.beside else ""
    return f"{figure.key} = {figure.value:.4g} {figure.unit}{beside}"
