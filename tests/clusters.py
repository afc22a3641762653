"""Clusters for a test run: what they need is built before the first test, and each run has folders of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster, tools
from dev.cluster.layout import REPOSITORY
from dev.cluster.preflight import why_not
from dev.images import build_images

CLUSTERS = REPOSITORY / ".cluster"
PREFIX = "test"


def build_before_tests(session: pytest.Session, folder: str, *, images: bool) -> None:
    """Build programs (and images) with lines of progress, if a test below `folder` was chosen and can run.

    Called when tests are collected: the first time takes longer than a test may.
    """
    if any(Path(folder) in item.path.parents for item in session.items):
        build(session.config, images=images)


def build(config: pytest.Config, *, images: bool) -> None:
    """Build programs (and images) that are not built yet, unless this run cannot use them."""
    if config.option.collectonly or why_not():
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        tools.ensure_programs()
        if images:
            build_images(reporter.write_line if reporter else lambda _: None)


def skip_where_impossible() -> None:
    """Skip the test, with the reason in one line, on a machine that cannot run a cluster."""
    if reason := why_not():
        pytest.skip(reason.splitlines()[0])


@contextlib.contextmanager
def own_cluster(purpose: str) -> Iterator[Cluster]:
    """A cluster of this test run, not started yet; down at the end, whatever happened."""
    remove_remains()
    name = f"{PREFIX}-{purpose}-{os.getpid()}"
    with Cluster(CLUSTERS / name, name) as cluster:
        yield cluster


def remove_remains() -> None:
    """Remove what test runs that are over left: logs, or a whole cluster of a run that was killed."""
    for folder in CLUSTERS.glob(f"{PREFIX}-*"):
        process = folder.name.rpartition("-")[2]
        if not Path("/proc", process).exists():
            Cluster(folder, folder.name).down()
            shutil.rmtree(folder, ignore_errors=True)
