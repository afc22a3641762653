"""A running control plane without nodes, shared by all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster
from tests.clusters import build_before_tests, own_cluster, skip_where_impossible


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before_tests(session, str(Path(__file__).parent), images=False)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """etcd, the API server and the controller manager."""
    skip_where_impossible()
    with own_cluster("plane") as started:
        started.control_plane_up()
        yield started
