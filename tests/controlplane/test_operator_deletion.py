"""The way out: what is deleted or unselected is drained, cleaned and only then let go."""

from __future__ import annotations

from tests.controlplane.operator_world import KVTIER, World, conditions, until


def serve(world: World, tier_class: str, nodes: list[str]) -> None:
    """Bring every node of the class to the state in which it serves."""
    until("every node has a CacheNode", lambda: len(world.cache_nodes(tier_class)) == len(nodes))
    until("every pod runs", lambda: world.run_pods(tier_class) == len(nodes))
    for node in nodes:
        world.report_serving(node)
    until("the class is ready", lambda: world.verdict(f"tierclasses/{tier_class}", "Ready")[0] == "True")


def drained(world: World, node: str) -> bool:
    return bool((world.cache_node(node) or {}).get("spec", {}).get("drain"))


def message(world: World, tier_class: str, kind: str) -> str:
    return str(conditions(world.class_(tier_class)).get(kind, {}).get("message", ""))


def test_deleted_class_goes_step_by_step(world: World) -> None:
    nodes = [world.node("n1"), world.node("n2")]
    flash = world.tier_class("flash")
    serve(world, flash, nodes)

    world.server.delete(f"{KVTIER}/tierclasses/{flash}")
    until("every node is told to drain", lambda: all(drained(world, node) for node in nodes))
    until("the class says so", lambda: world.verdict(f"tierclasses/{flash}", "Ready") == ("False", "Draining"))

    world.report_drained(nodes[0])
    until("one node is left", lambda: message(world, flash, "Progressing").endswith(f"has drained on {nodes[1]}"))
    assert world.daemon_set(flash), "the store was taken away before it had drained everywhere"

    world.report_drained(nodes[1])
    until("the store is gone", lambda: world.daemon_set(flash) is None and world.config_map(flash) is None)
    until("its pods have ended", lambda: world.run_pods(flash) == 0)
    assert len(world.cache_nodes(flash)) == 2

    world.report_released(nodes[0])
    until("the first node is let go", lambda: world.cache_node(nodes[0]) is None)
    assert world.cache_node(nodes[1]) and world.class_(flash)
    world.report_released(nodes[1])
    until("the class is gone", lambda: world.class_(flash) is None)
    assert world.cache_nodes(flash) == []


def test_deleted_class_whose_stores_never_ran_needs_no_drain(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    until("there is a pod", lambda: world.pods(flash))

    world.server.delete(f"{KVTIER}/tierclasses/{flash}")
    until("the store is gone", lambda: world.daemon_set(flash) is None)
    world.report_released(node)
    until("the class is gone", lambda: world.class_(flash) is None)


def test_blocked_deletion_names_what_blocks_it(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    until("there is a pod", lambda: world.pods(flash))
    world.server.delete(f"{KVTIER}/tierclasses/{flash}")
    until("the node drains", lambda: drained(world, node))

    world.report(node, "kvtier-node", ("Released", "False", "ReleaseBlocked"))
    until(
        "the deletion is called blocked",
        lambda: world.verdict(f"tierclasses/{flash}", "Degraded") == ("True", "DeletionBlocked"),
    )
    world.server.delete(f"/api/v1/nodes/{node}")
    until("the class is gone with the node", lambda: world.class_(flash) is None)


def test_node_no_longer_selected_is_drained_and_let_go(world: World) -> None:
    nodes = [world.node("n1"), world.node("n2")]
    flash = world.tier_class("flash")
    serve(world, flash, nodes)

    world.server.merge(f"/api/v1/nodes/{nodes[0]}", {"metadata": {"labels": {"test": None}}})
    until("the node drains", lambda: drained(world, nodes[0]))
    until("the class has one node", lambda: (world.class_(flash) or {})["status"]["nodes"]["desired"] == 1)
    until("its pod has ended", lambda: world.run_pods(flash) == 1)
    world.report_released(nodes[0])
    until("its CacheNode is gone", lambda: world.cache_node(nodes[0]) is None)
    assert not drained(world, nodes[1])
    assert world.verdict(f"tierclasses/{flash}", "Ready") == ("True", "AllNodesReady")
    assert ("NodeDraining", f"begins to drain: {nodes[0]}") in world.events(flash)


def test_cache_node_goes_with_its_node(world: World) -> None:
    nodes = [world.node("n1"), world.node("n2")]
    flash = world.tier_class("flash")
    serve(world, flash, nodes)

    world.server.delete(f"/api/v1/nodes/{nodes[0]}")
    until("its CacheNode is gone", lambda: world.cache_node(nodes[0]) is None)
    assert world.cache_node(nodes[1])


def test_node_changes_hands_only_once_it_is_clean(world: World) -> None:
    node = world.node("n1")
    first, second = world.tier_class("first"), world.tier_class("second", selector={"test": "nobody"})
    serve(world, first, [node])

    world.server.merge(f"{KVTIER}/tierclasses/{second}", {"spec": {"nodeSelector": {"test": world.tag}}})
    world.server.delete(f"{KVTIER}/tierclasses/{first}")
    until("the node drains", lambda: drained(world, node))
    until("the heir waits", lambda: f"drained for TierClass {first}" in message(world, second, "Ready"))
    world.report_drained(node)
    until("the store is gone", lambda: world.daemon_set(first) is None)
    assert (world.cache_node(node) or {})["spec"]["tierClass"] == first

    world.report_released(node)
    until("the heir has it", lambda: [entry["spec"]["drain"] for entry in world.cache_nodes(second)] == [False])
    until("the first class is gone", lambda: world.class_(first) is None)
