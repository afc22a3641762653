from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvtier_bench import cli
from kvtier_bench.figures import Figure
from kvtier_bench.report import Report, write_json


def test_unknown_scenario_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--only", "get,nonsense"])
    assert ended.value.code == 2
    words = capsys.readouterr().err
    assert "no scenario is called nonsense" in words
    assert "restore" in words


def test_markdown_of_a_file_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    write_json(Report.of_run([Figure("nvme_vs_fio", "restore", 0.97, "x")], {"cpus": 2}), file, keep_earlier=False)
    assert cli.main(["bench", "--markdown", str(file)]) == 0
    assert "| restore (`nvme_vs_fio`) | 0.97 x | ≥ 0.95 |" in capsys.readouterr().out
    assert json.loads(file.read_text())["nvme_vs_fio"] == 0.97
