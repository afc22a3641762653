from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from kvtier_bench.context import Context, Options, Scenario
from kvtier_bench.figures import BARS, CannotRun, Figure
from kvtier_bench.report import Report, markdown, print_table, read_json, verdict, write_json
from kvtier_bench.runner import run_all
from kvtier_bench.scenarios import SCENARIOS
from rich.console import Console

MACHINE: dict[str, Any] = {"cpus": 2, "processor": "a | b", "peers": {"fio": "fio-3.33"}}
GET = Figure("get_into_vs_memcpy", "get_into", 0.95, "x", "9 GB/s; memcpy 9.5 GB/s")
SLOW = Figure("nvme_vs_fio", "restore", 0.5, "x", "0.5 GB/s; fio 1 GB/s")
MISSING = Figure("get_vs_redis", "against Redis", None, reason="redis-server is missing")


def report() -> Report:
    return Report.of_run([GET, SLOW, MISSING], MACHINE)


def test_document_has_figures_at_the_top_and_reasons_for_nulls() -> None:
    document = report().document()
    assert document["get_into_vs_memcpy"] == 0.95
    assert document["get_vs_redis"] is None
    assert document["reasons"] == {"get_vs_redis": "redis-server is missing"}
    assert document["missed"] == ["nvme_vs_fio"]
    assert Report.from_document(json.loads(json.dumps(document))) == report_as(document)


def report_as(document: dict[str, Any]) -> Report:
    return Report([GET, SLOW, MISSING], MACHINE, document["measured"])


def test_a_run_of_some_scenarios_keeps_the_others_figures(tmp_path: Path) -> None:
    file = tmp_path / "out" / "bench.json"
    write_json(report(), file, keep_earlier=False)
    later = Report.of_run([Figure("nvme_vs_fio", "restore", 0.97, "x")], MACHINE)
    write_json(later, file, keep_earlier=True)
    document = json.loads(file.read_text())
    assert document["nvme_vs_fio"] == 0.97
    assert document["get_into_vs_memcpy"] == 0.95
    assert document["missed"] == []
    assert read_json(file).figures[0] == GET


def test_a_whole_run_replaces_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    write_json(report(), file, keep_earlier=False)
    write_json(Report.of_run([GET], MACHINE), file, keep_earlier=False)
    assert "nvme_vs_fio" not in json.loads(file.read_text())


def test_an_unreadable_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text('{"figures": 3}')
    write_json(report(), file, keep_earlier=True)
    assert json.loads(file.read_text())["get_into_vs_memcpy"] == 0.95


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (GET, True),
        (SLOW, False),
        (MISSING, None),
        (Figure("get_call_us_p50", "", 300.0), True),
        (Figure("get_call_us_p50", "", 301.0), False),
        (Figure("get_into_gb_s", "", 1.0), None),
    ],
)
def test_verdict_holds_a_figure_against_its_bar(figure: Figure, met: bool | None) -> None:
    assert verdict(figure) is met


def test_table_shows_value_bar_and_what_stands_beside() -> None:
    text = io.StringIO()
    print_table(report(), Console(file=text, width=160))
    for part in ("0.95 x", "≥ 0.9", "memcpy 9.5 GB/s", "not measured: redis-server is missing", "get_vs_redis"):
        assert part in text.getvalue()


def test_markdown_names_machine_versions_and_reasons() -> None:
    text = markdown(report())
    assert "2 CPUs" in text
    assert "fio-3.33" in text
    assert "| restore (`nvme_vs_fio`) | 0.5 x | ≥ 0.95 | 0.5 GB/s; fio 1 GB/s |" in text
    assert "not measured: redis-server is missing" in text


def test_every_key_of_a_failed_scenario_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    def fails(_context: Context) -> list[Figure]:
        raise CannotRun("no root here")

    def breaks_after_one(_context: Context) -> Any:
        yield Figure("c", "c", 1.0)
        raise RuntimeError("broken")

    def works(context: Context) -> list[Figure]:
        assert context.disk.is_dir()
        assert context.memory.is_dir()
        return [Figure("e", "e", 2.0)]

    scenarios = [
        Scenario("one", "first", ("a", "b"), fails),
        Scenario("two", "second", ("c", "d"), breaks_after_one),
        Scenario("three", "third", ("e",), works),
    ]
    said: list[str] = []
    figures = {figure.key: figure for figure in run_all(scenarios, Options(tmp_path), said.append)}
    assert {key: figure.value for key, figure in figures.items()} == {
        "a": None,
        "b": None,
        "c": 1.0,
        "d": None,
        "e": 2.0,
    }
    assert figures["a"].reason == "no root here"
    assert figures["d"].reason == "RuntimeError: broken"
    assert any("not measured: no root here" in line for line in said)
    assert list(tmp_path.iterdir()) == []


def test_every_bar_has_a_scenario_that_measures_it() -> None:
    keys = [key for scenario in SCENARIOS for key in scenario.keys]
    assert len(keys) == len(set(keys))
    assert set(BARS) <= set(keys)
    assert {"contiguous_vs_shuffled", "soak_rss_growth_mib", "soak_fd_growth"} <= set(keys)
