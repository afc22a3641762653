"""Killed at any instant, the operator leaves nothing that the next one does not finish, and undoes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster
from tests.controlplane.operator_world import KVTIER, World, open_world, until

NODES = 12
KILLED = -9


@pytest.fixture
def world(control_plane: Cluster, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, tmp_path) as opened:
        yield opened


def kill_when(world: World, what: str, seen: Callable[[], object]) -> None:
    """Start an operator and kill it the moment that `seen` holds."""
    running = world.start_operator()
    until(what, seen)
    running.kill()
    assert running.wait(timeout=10) == KILLED


def test_operator_killed_while_making_is_finished_by_the_next(world: World) -> None:
    nodes = [world.node(f"n{number}") for number in range(NODES)]
    flash = world.tier_class("flash")
    pool = world.pool("chat", flash)

    kill_when(world, "the class is held", lambda: (world.class_(flash) or {})["metadata"].get("finalizers"))
    kill_when(world, "the configuration is made", lambda: world.config_map(flash))
    kill_when(world, "the first CacheNode is made", lambda: world.cache_nodes(flash))
    last = world.start_operator()

    until("every node has a CacheNode", lambda: len(world.cache_nodes(flash)) == NODES)
    until("there is a DaemonSet", lambda: world.daemon_set(flash))
    assert {entry["metadata"]["name"] for entry in world.cache_nodes(flash)} == set(nodes)
    granted = {entry["uid"] for found in world.cache_nodes(flash) for entry in found["spec"]["pools"]}
    assert granted == {pool["metadata"]["uid"]}
    until("the status is written", lambda: ((world.class_(flash) or {}).get("status") or {}).get("nodes"))
    assert (world.class_(flash) or {})["status"]["nodes"]["desired"] == NODES
    assert last.poll() is None


def test_operator_killed_while_removing_is_finished_by_the_next(world: World) -> None:
    nodes = [world.node(f"n{number}") for number in range(NODES)]
    flash = world.tier_class("flash")
    kill_when(world, "all is made", lambda: len(world.cache_nodes(flash)) == NODES and world.daemon_set(flash))
    world.server.delete(f"{KVTIER}/tierclasses/{flash}")

    def draining() -> int:
        return sum(entry["spec"].get("drain", False) for entry in world.cache_nodes(flash))

    kill_when(world, "the first node drains", draining)
    kill_when(world, "the store is gone", lambda: world.daemon_set(flash) is None)
    kill_when(world, "every node drains", lambda: draining() == NODES)
    for node in nodes:
        world.report_released(node)
    kill_when(world, "the first CacheNode is gone", lambda: len(world.cache_nodes(flash)) < NODES)
    world.start_operator()

    until("the class is gone", lambda: world.class_(flash) is None)
    assert world.cache_nodes(flash) == []
    assert world.config_map(flash) is None


def test_new_operator_touches_nothing_that_is_as_it_should_be(world: World) -> None:
    nodes = [world.node(f"n{number}") for number in range(NODES)]
    flash = world.tier_class("flash")
    world.pool("chat", flash)
    kill_when(world, "all is made", lambda: len(world.cache_nodes(flash)) == NODES and world.daemon_set(flash))
    before = {entry["metadata"]["name"]: entry["metadata"]["generation"] for entry in world.cache_nodes(flash)}

    for number in range(3):
        running = world.start_operator()
        mark = world.pool(f"mark{number}", "no-such-class")
        path = f"namespaces/default/cachepools/{mark['metadata']['name']}"
        until("a pass is over", lambda path=path: world.verdict(path, "Ready")[0] == "False")
        running.kill()
        running.wait(timeout=10)

    after = {entry["metadata"]["name"]: entry["metadata"]["generation"] for entry in world.cache_nodes(flash)}
    assert after == before
    assert set(after) == set(nodes)


def test_operator_ends_at_once_when_told(world: World) -> None:
    flash = world.tier_class("flash")
    running = world.start_operator()
    until("it works", lambda: world.daemon_set(flash))

    running.terminate()

    assert running.wait(timeout=10) == 0
