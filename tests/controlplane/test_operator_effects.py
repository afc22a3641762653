"""Audits and the carrying out of plans, in this process, against the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kvtier_operator.apply.api import Api, connect
from kvtier_operator.apply.carry_out import Executor
from kvtier_operator.desired.actions import Action, Apply, Delete, SetFinalizers, Stage
from kvtier_operator.objects import CONFIG_MAPS, TIER_CLASSES, Target
from kvtier_operator.view.audit import Auditor
from kvtier_operator.view.cache import Cache
from kvtier_operator.view.kinds import WATCHED_KINDS, WatchedKind

from dev.cluster import Cluster
from tests.controlplane.operator_world import CONFIGS, KVTIER, NAMESPACE, World, open_world

DEADLINE_S = 60.0
KINDS: dict[str, WatchedKind] = {kind.resource.kind: kind for kind in WATCHED_KINDS}
LISTS = {
    "TierClass": f"{KVTIER}/tierclasses",
    "CachePool": f"{KVTIER}/cachepools",
    "CacheNode": f"{KVTIER}/cachenodes",
    "Node": "/api/v1/nodes",
    "Pod": f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=kvtier.io/tier-class",
    "DaemonSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets?labelSelector=kvtier.io/tier-class",
    "ConfigMap": f"{CONFIGS}?labelSelector=kvtier.io/tier-class",
}


@pytest.fixture
def world(control_plane: Cluster, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, tmp_path) as opened:
        yield opened


@pytest.fixture
async def api(world: World) -> AsyncIterator[Api]:
    yield connect(world.kubeconfig)


def fill(cache: Cache, world: World) -> None:
    """What watches would have brought by now."""
    for name, path in LISTS.items():
        for found in world.server.items(path):
            cache.put(KINDS[name], found)


def auditor(api: Api) -> Auditor:
    return Auditor(api, Cache(changed=lambda: None), NAMESPACE)


async def test_view_is_complete_only_once_it_holds_all_there_is(world: World, api: Api) -> None:
    world.node("n1")
    checked = auditor(api)

    await checked.audit()
    before = checked.complete
    async with asyncio.timeout(DEADLINE_S):
        while not checked.complete:  # the controller manager may taint the node in between: then not this time
            fill(checked.cache, world)
            await checked.audit()

    assert (before, checked.complete, checked.silent) == (False, True, frozenset())


async def test_watch_that_brings_nothing_for_an_audit_is_silent(world: World, api: Api) -> None:
    checked = auditor(api)
    fill(checked.cache, world)
    await checked.audit()
    world.node("n1")

    await checked.audit()
    first = checked.silent
    await checked.audit()
    second = checked.silent
    fill(checked.cache, world)
    await checked.audit()

    assert (first, second, checked.silent) == (frozenset(), frozenset({"Node"}), frozenset())


async def test_object_gone_while_its_watch_was_away_leaves_the_view(world: World, api: Api) -> None:
    node = world.node("n1")
    checked = auditor(api)
    fill(checked.cache, world)
    assert node in checked.cache.view().nodes

    world.server.delete(f"/api/v1/nodes/{node}")
    await checked.audit()

    assert node not in checked.cache.view().nodes


def config_map(name: str, data: object) -> Apply:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}
    return Apply(Target(CONFIG_MAPS, name, NAMESPACE), body)


async def test_refused_step_is_named_backs_off_and_holds_up_what_needs_it(world: World, api: Api) -> None:
    clock = [100.0]
    executor = Executor(api, clock=lambda: clock[0])
    bad, good = config_map(world.name("bad"), {"no key!": ""}), config_map(world.name("good"), {"a": "b"})
    needy = Action(config_map(world.name("needy"), {}), requires=(bad.target,))
    plan = {Stage.CONFIGURATION: [Action(bad), Action(good)], Stage.OBJECTS: [needy]}
    waits = []
    for _ in range(4):
        await executor.carry_out(plan)
        wait_s = executor.next_retry_s()
        assert wait_s is not None
        waits.append(wait_s)
        await executor.carry_out(plan)
        assert executor.next_retry_s() == wait_s, "it was tried again before it was due"
        clock[0] += wait_s

    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert list(executor.refusals()) == [bad.target]
    assert world.server.get(f"{CONFIGS}/{good.target.name}")
    assert world.server.get(f"{CONFIGS}/{needy.step.target.name}") is None

    mended = {Stage.CONFIGURATION: [Action(config_map(bad.target.name, {"c": "d"}))], Stage.OBJECTS: [needy]}
    await executor.carry_out(mended)
    assert (executor.refusals(), executor.next_retry_s()) == ({}, None)
    for name in (bad.target.name, good.target.name, needy.step.target.name):
        assert world.server.get(f"{CONFIGS}/{name}")
        world.server.delete(f"{CONFIGS}/{name}")


async def test_failure_is_forgotten_when_the_step_is_no_longer_wanted(world: World, api: Api) -> None:
    executor = Executor(api)
    await executor.carry_out({Stage.CONFIGURATION: [Action(config_map(world.name("bad"), {"no key!": ""}))]})
    assert executor.refusals()

    await executor.carry_out({})

    assert (executor.refusals(), executor.next_retry_s()) == ({}, None)


async def test_object_made_again_meanwhile_is_not_deleted(world: World, api: Api) -> None:
    flash = world.tier_class("flash")
    step = Delete(Target(TIER_CLASSES, flash), "11111111-0000-4000-8000-000000000000")

    await Executor(api).carry_out({Stage.DELETIONS: [Action(step)]})

    assert world.class_(flash)


async def test_deleting_what_is_gone_is_done(world: World, api: Api) -> None:
    executor = Executor(api)
    step = Delete(Target(TIER_CLASSES, world.name("never-was")), "11111111-0000-4000-8000-000000000000")

    assert await executor.carry_out({Stage.DELETIONS: [Action(step)]}) == 1


async def test_finalizers_of_a_changed_object_are_left_alone(world: World, api: Api) -> None:
    flash = world.tier_class("flash")
    seen = (world.class_(flash) or {})["metadata"]
    world.server.merge(f"{KVTIER}/tierclasses/{flash}", {"metadata": {"finalizers": ["other.example/one"]}})
    step = SetFinalizers(Target(TIER_CLASSES, flash), ("kvtier.io/drain",), seen["uid"], seen["resourceVersion"])

    await Executor(api).carry_out({Stage.FINALIZERS: [Action(step)]})

    assert (world.class_(flash) or {})["metadata"]["finalizers"] == ["other.example/one"]
