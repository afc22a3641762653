"""Runs by several workers (`-n`): what is built first, and which tests one worker runs one after the other."""

from __future__ import annotations

import pytest

from dev.cluster.layout import REPOSITORY
from tests.clusters import build

ONE_AFTER_THE_OTHER = {
    "tests/cluster": "cluster",
    "tests/controlplane": "cluster",
    "tests/unit/store/test_huge_pages.py": "cluster",
}
"""They share a cluster, or what the machine has once."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build here what a worker would build without a line of progress: it has no terminal."""
    if session.config.getoption("numprocesses", None):
        images = _is_chosen(session.config, "tests/cluster")
        if images or _is_chosen(session.config, "tests/controlplane"):
            build(session.config, images=images)


def _is_chosen(config: pytest.Config, folder: str) -> bool:
    """Whether an argument names the folder, something in it, or what it lies in."""
    wanted = REPOSITORY / folder
    named = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return any(path.is_relative_to(wanted) or wanted.is_relative_to(path) for path in named)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = str(item.path.relative_to(REPOSITORY))
        for start, group in ONE_AFTER_THE_OTHER.items():
            if path.startswith(start):
                item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a worker that does not know of groups, each would start a cluster."""
    in_groups = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if hasattr(session.config, "workerinput") and not all("@" in item.nodeid for item in in_groups):
        raise pytest.UsageError("these releases of pytest and pytest-xdist do not keep xdist_group's tests together")
