"""A cluster from the command line: it outlives the command, and nothing of it outlives `down` or an interrupt."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster
from dev.cluster.layout import REPOSITORY, Layout
from dev.cluster.node import NodeGone
from tests.cluster.traces import remains, surroundings
from tests.clusters import CLUSTERS, PREFIX, skip_where_impossible

UP_S = 240
GONE_S = 90


@pytest.fixture
def layout() -> Iterator[Layout]:
    """Where a cluster of the command line will be; removed at the end in any case."""
    skip_where_impossible()
    name = f"{PREFIX}-life-{os.getpid()}"
    folder = CLUSTERS / name
    yield Layout(folder, name)
    Cluster(folder, name).down()
    shutil.rmtree(folder, ignore_errors=True)


def command(layout: Layout, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dev.cluster", f"--name={layout.name}", *arguments]


def run(layout: Layout, *arguments: str) -> str:
    done = subprocess.run(command(layout, *arguments), cwd=REPOSITORY, capture_output=True, text=True, timeout=UP_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cut_off(cluster: Cluster, name: str) -> None:
    """Remove a node, and see that it is gone while the rest runs."""
    node = cluster.node(name)
    cluster.remove_node(name)
    with pytest.raises(NodeGone, match=f"node {name} of .* is not running"):
        node.run("true")
    assert [left.name for left in cluster.nodes()] == ["n1"]
    assert cluster.node("n1").run("hostname").strip() == "n1"


def test_cluster_outlives_its_command_and_down_leaves_nothing(layout: Layout) -> None:
    before = surroundings()
    assert f"export KUBECONFIG={layout.kubeconfig}" in run(layout, "up")
    assert run(layout, "kubectl", "get", "nodes", "--output=name").split() == ["node/n1"]
    assert "the cluster is up already" in run(layout, "up")
    run(layout, "add-node", "brief")
    assert run(layout, "kubectl", "get", "nodes", "--output=name").split() == ["node/brief", "node/n1"]
    cut_off(Cluster(layout.folder, layout.name), "brief")
    assert surroundings() == before
    assert len(remains(layout)) > 1, "the search for remains finds a running cluster"
    run(layout, "down")
    assert remains(layout) == []
    assert surroundings() == before
    run(layout, "down")


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGINT, "starting etcd", id="interrupt"),
        pytest.param(signal.SIGTERM, "starting node", id="terminate"),
        pytest.param(signal.SIGKILL, "starting node", id="kill"),
    ],
)
def test_up_that_is_stopped_on_the_way_leaves_nothing(layout: Layout, number: signal.Signals, moment: str) -> None:
    before = surroundings()
    # In a background job of a shell interrupts are ignored, and children inherit that.
    heeding = ["env", "--default-signal=INT", *command(layout, "up")]
    with subprocess.Popen(heeding, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        assert any(moment in line for line in up.stdout), "the moment came"
        time.sleep(0.5)
        up.send_signal(number)
        up.wait(GONE_S)
    end = time.monotonic() + GONE_S
    while (left := remains(layout)) and time.monotonic() < end:
        time.sleep(0.2)
    assert left == []
    assert surroundings() == before
    assert up.returncode == {signal.SIGKILL: -signal.SIGKILL}.get(number, 130)


def test_component_that_fails_is_named_with_its_log(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho the reason it gives\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    done = subprocess.run(command(layout, "up"), cwd=REPOSITORY, capture_output=True, text=True, timeout=UP_S)
    assert done.returncode == 1
    assert "kube-apiserver ended before the API server is ready" in done.stderr
    assert "the reason it gives" in done.stderr
    assert remains(layout) == []


def test_two_clusters_run_side_by_side(layout: Layout, cluster: Cluster) -> None:
    with Cluster(layout.folder, layout.name) as second:
        second.control_plane_up()
        second.kubectl("create", "namespace", "only-in-the-second")
        assert "only-in-the-second" not in cluster.kubectl("get", "namespaces", "--output=name")
        assert second.kubectl("get", "nodes", "--output=name") == ""
    assert remains(layout) == []
    assert cluster.is_running()
