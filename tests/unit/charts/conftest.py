"""Rendering the charts with the real helm."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster.tools import ToolsMissing, ensure_programs

CHARTS = Path(__file__).parents[3] / "charts"
NAMESPACE = "kvtier-system"


@dataclass(frozen=True)
class Helm:
    """The helm program."""

    program: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=60)

    def render(self, chart: str, *settings: str) -> list[dict[str, Any]]:
        """Every object of the chart. `settings` are `--set-json` values; fails with helm's message."""
        shown = self.template(chart, *settings)
        assert shown.returncode == 0, shown.stderr
        return [document for document in yaml.safe_load_all(shown.stdout) if document]

    def template(self, chart: str, *settings: str) -> subprocess.CompletedProcess[str]:
        flags = [word for setting in settings for word in ("--set-json", setting)]
        return self.run("template", "demo", str(CHARTS / chart), "--namespace", NAMESPACE, *flags)


@pytest.fixture(scope="session")
def helm() -> Helm:
    try:
        return Helm(ensure_programs()["helm"])
    except ToolsMissing as error:
        pytest.skip(f"no helm: {error}")
