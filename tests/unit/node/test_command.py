"""The command kvtier-node: its probe, and what it says when it cannot serve."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvtier_agent.node.main import probe

COMMAND = [sys.executable, "-m", "kvtier_agent.node.main"]


def test_probe_of_a_live_node_agent_succeeds(tmp_path: Path) -> None:
    heartbeat = tmp_path / "heartbeat"
    heartbeat.touch()
    assert probe(heartbeat, heartbeat.stat().st_mtime + 29) == 0


def test_probe_of_a_hanging_node_agent_says_for_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = tmp_path / "heartbeat"
    heartbeat.touch()
    assert probe(heartbeat, heartbeat.stat().st_mtime + 31) == 1
    assert capsys.readouterr().err == "kvtier-node has been silent for 31 s; it is allowed 30 s\n"


def test_probe_before_the_start_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(tmp_path / "heartbeat", 0) == 1
    assert "has not started" in capsys.readouterr().err


def test_probe_loads_nothing_of_the_plugin() -> None:
    code = "import sys, kvtier_agent.node.main; print([m for m in ('grpc', 'aiohttp', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_command_outside_a_pod_says_what_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    done = subprocess.run([*COMMAND, "--node-name", "n1"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == (
        "kvtier-node: KUBERNETES_SERVICE_HOST is not set: run this in a pod that has a service account and its "
        "node's name\n"
    )
