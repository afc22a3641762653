"""The results: a table for people, a JSON file, and Markdown for docs/benchmarks.md."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from kvtier_bench.figures import BARS, Figure


class Report(msgspec.Struct, frozen=True):
    """Everything of one or more runs on one machine. `document` and `from_document` are its JSON form."""

    figures: list[Figure]
    machine: dict[str, Any]
    measured: dict[str, str]
    """When each figure was measured, by key."""

    @classmethod
    def of_run(cls, figures: Sequence[Figure], machine: dict[str, Any]) -> Report:
        """The report of a run that ends now."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(list(figures), machine, {figure.key: now for figure in figures})

    def over(self, earlier: Report) -> Report:
        """These figures, and those of `earlier` that this run did not try."""
        tried = {figure.key for figure in self.figures}
        kept = [figure for figure in earlier.figures if figure.key not in tried]
        return Report([*kept, *self.figures], self.machine, {**earlier.measured, **self.measured})

    def document(self) -> dict[str, Any]:
        """Figures by key at the top level, null where not measured; `reasons`, `machine`, `figures` beside them."""
        return {
            **{figure.key: figure.value for figure in self.figures},
            "reasons": {figure.key: figure.reason for figure in self.figures if figure.value is None},
            "missed": [figure.key for figure in self.figures if verdict(figure) is False],
            "machine": self.machine,
            "measured": self.measured,
            "figures": [msgspec.to_builtins(figure) for figure in self.figures],
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Report:
        """The report that made this document.

        Raises msgspec.ValidationError.
        """
        return msgspec.convert({name: document.get(name) for name in ("figures", "machine", "measured")}, type=cls)


def verdict(figure: Figure) -> bool | None:
    """Whether the figure meets its bar; None when it has none or was not measured."""
    bar = BARS.get(figure.key)
    return None if bar is None or figure.value is None else bar.met_by(figure.value)


def write_json(report: Report, path: Path, keep_earlier: bool) -> Report:
    """Write the document; with `keep_earlier`, what an earlier run left in the file stays. Returns what was written.

    A file that cannot be read as a report is replaced.
    """
    if keep_earlier and path.exists():
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            report = report.over(read_json(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report.document())) + b"\n")
    return report


def read_json(path: Path) -> Report:
    """The report in the file.

    Raises OSError, msgspec.MsgspecError.
    """
    return Report.from_document(msgspec.json.decode(path.read_bytes()))


def print_table(report: Report, console: Console) -> None:
    """Each figure beside its limit and its bar."""
    table = Table(title="kvtier bench", title_justify="left")
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("bar", justify="right")
    table.add_column("beside", overflow="fold")
    for figure in report.figures:
        colour = {True: "green", False: "red", None: "default"}[verdict(figure)]
        table.add_row(
            f"{figure.what}\n[dim]{figure.key}[/dim]",
            f"[{colour}]{_value(figure)}[/{colour}]",
            str(BARS.get(figure.key, "")),
            figure.beside if figure.value is not None else f"not measured: {figure.reason}",
        )
    console.print(table)


def markdown(report: Report) -> str:
    """The same for docs/benchmarks.md, with date, machine and versions."""
    machine = report.machine
    lines = [
        f"Measured {max(report.measured.values(), default='')[:10]} on {machine.get('cpus')} CPUs "
        f"({machine.get('processor')}, last-level cache {machine.get('last_level_cache_mib')} MiB), "
        f"{machine.get('memory_mib')} MiB of memory, Linux {machine.get('kernel')}, {machine.get('system')}, "
        f"Python {machine.get('python')}, "
        f"kvtier {machine.get('kvtier')} ({machine.get('commit')})."
        + "".join(f" {name} {number}." for name, number in sorted(machine.get("peers", {}).items())),
        "",
        "| figure | value | bar | beside it, in the same run |",
        "| --- | --- | --- | --- |",
    ]
    for figure in report.figures:
        beside = figure.beside if figure.value is not None else f"not measured: {figure.reason}"
        cells = (f"{figure.what} (`{figure.key}`)", _value(figure), str(BARS.get(figure.key, "")), beside)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "–"  # noqa: RUF001 (a dash in a table)
    digits = f"{figure.value:,.0f}" if abs(figure.value) >= 1000 else f"{figure.value:.3g}"
    return f"{digits} {figure.unit}".strip()
