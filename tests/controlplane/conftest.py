"""A running control plane without nodes, shared by all tests of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster
from tests.clusters import build_before_tests, own_cluster, skip_where_impossible
from tests.controlplane.operator_world import World, open_world


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before_tests(session, str(Path(__file__).parent), images=False)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd, the API server and the controller manager."""
    skip_where_impossible()
    with own_cluster("plane") as started:
        started.control_plane_up()
        yield started


@pytest.fixture(scope="module")
def operator(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """One operator for all tests of a module: each has nodes, classes and pools of its own."""
    with open_world(control_plane, tmp_path_factory.mktemp("operator")) as opened:
        yield opened.start_operator()


@pytest.fixture
def world(operator: subprocess.Popen[bytes], control_plane: Cluster, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, tmp_path) as opened:
        yield opened
        assert operator.poll() is None, "the operator ended by itself"
