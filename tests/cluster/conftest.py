"""A running cluster of one node, with the project's images, shared by all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster, Node
from dev.images import Image, build_images
from tests.cluster.installation import Installation
from tests.clusters import build_before_tests, own_cluster, skip_where_impossible

SLOWEST_S = 900
"""A test's time includes what it starts first: the cluster, on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOWEST_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    build_before_tests(session, str(Path(__file__).parent), images=True)


@pytest.fixture(scope="session")
def images() -> dict[str, Image]:
    """The images `operator`, `agent` and `sidecar`."""
    skip_where_impossible()
    return build_images()


@pytest.fixture(scope="session")
def cluster(images: dict[str, Image]) -> Iterator[Cluster]:
    """One node, n1, Ready, with all images loaded."""
    with own_cluster("node") as started:
        started.up(nodes=1)
        for image in images.values():
            started.load_image(image.archive)
        yield started


@pytest.fixture(scope="session")
def installation(cluster: Cluster, images: dict[str, Image]) -> Installation:
    """kvtier on that node: both charts, a class, and a pool that is served."""
    installed = Installation(cluster, images)
    installed.install()
    return installed


@pytest.fixture(scope="session")
def second_node(installation: Installation) -> Node:
    """A node, n2, added after kvtier was installed; no class selects it."""
    return installation.cluster.add_node("n2")
