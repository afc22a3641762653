"""What the operator makes of classes and pools, on a real API server with a real DaemonSet controller."""

from __future__ import annotations

from typing import Any

import yaml
from kubernetes.client.exceptions import ApiException
from kvtier_crds.models import Tiers
from kvtier_crds.words import about
from kvtier_operator.desired.resources import store_memory_bytes

from tests.controlplane.operator_world import KVTIER, World, conditions, until

Object = dict[str, Any]


def test_class_and_pool_are_served_and_shown_ready(world: World) -> None:
    nodes = [world.node("n1"), world.node("n2")]
    world.node("other", labels={})
    flash = world.tier_class("flash")
    pool = world.pool("chat", flash)

    until("both nodes have a CacheNode", lambda: len(world.cache_nodes(flash)) == 2)
    until("both pods run", lambda: world.run_pods(flash) == 2)
    for node in nodes:
        world.report_serving(node, [pool])
    until("the class is ready", lambda: world.verdict(f"tierclasses/{flash}", "Ready") == ("True", "AllNodesReady"))
    path = f"namespaces/default/cachepools/{pool['metadata']['name']}"
    until("the pool is ready", lambda: world.verdict(path, "Ready") == ("True", "AllNodesServing"))

    status = (world.class_(flash) or {})["status"]
    assert status["nodes"] == {"desired": 2, "ready": 2, "updated": 2, "summary": "2/2"}
    assert status["tiers"]["dram"] == {"capacity": "2Gi", "used": "1Gi"}
    assert (status["hitRatio"], status["observedGeneration"]) == ("87%", 1)
    share = (world.server.get(f"{KVTIER}/{path}") or {})["status"]
    assert (share["nodes"], share["blocks"], share["hitRatio"]) == (2, 14, "87%")
    told = {reason for reason, _ in world.events(flash)}
    assert {"NodeAdded", "AllNodesReady"} <= told
    assert ("AllNodesServing", "every ready node serves it (2 of 2)") in world.events(pool["metadata"]["name"])


def test_cache_node_carries_the_grants_of_its_pools(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    accounts = [{"name": "web"}, {"namespace": "batch", "name": "*"}]
    pool = world.pool("chat", flash, serviceAccounts=accounts, evictionPolicy="lru", ttl="36h")

    def granted() -> list[Object]:
        return ((world.cache_node(node) or {}).get("spec") or {}).get("pools") or []

    (entry,) = until("the pool is granted", granted)
    assert entry == {
        "uid": pool["metadata"]["uid"],
        "namespace": "default",
        "name": pool["metadata"]["name"],
        "quota": {"dram": "256Mi"},
        "serviceAccounts": [{"namespace": "default", "name": "web"}, {"namespace": "batch", "name": "*"}],
        "evictionPolicy": "lru",
        "ttl": "36h",
        "restore": "auto",
    }

    path = f"{KVTIER}/namespaces/default/cachepools/{pool['metadata']['name']}"
    world.server.merge(path, {"spec": {"serviceAccounts": [{"name": "web"}]}})
    until("the grant is narrowed", lambda: granted() and len(granted()[0]["serviceAccounts"]) == 1)
    world.server.delete(path)
    until("the pool is taken out", lambda: granted() == [])


def test_revocation_gets_through_beside_more_accounts_than_an_object_holds(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    longest = [{"namespace": "n" * 63, "name": f"{number:03}" + "a" * 250} for number in range(256)]
    small = world.pool("small", flash, serviceAccounts=[{"name": "web"}, {"name": "batch"}])
    large = [world.pool(f"large-{number}", flash, serviceAccounts=longest) for number in range(24)]

    def granted() -> dict[str, list[str]]:
        pools = ((world.cache_node(node) or {}).get("spec") or {}).get("pools") or []
        return {pool["uid"]: [account["name"] for account in pool["serviceAccounts"]] for pool in pools}

    until("every pool is granted", lambda: len(granted()) == 25)
    uid, cut = small["metadata"]["uid"], large[0]["metadata"]
    until("the large ones are cut", lambda: 50 < len(granted()[cut["uid"]]) < 256)
    assert granted()[uid] == ["web", "batch"]
    path = f"namespaces/default/cachepools/{cut['name']}"
    until("it is said", lambda: world.verdict(path, "Degraded") == ("True", "TooManyAccounts"))

    named = f"{KVTIER}/namespaces/default/cachepools"
    world.server.merge(f"{named}/{small['metadata']['name']}", {"spec": {"serviceAccounts": [{"name": "batch"}]}})
    until("the account is revoked", lambda: granted()[uid] == ["batch"])
    world.server.merge(f"{named}/{cut['name']}", {"spec": {"serviceAccounts": longest[1:]}})
    until("so is one of a long list", lambda: longest[0]["name"] not in granted()[cut["uid"]])


def test_entry_that_another_wrote_is_taken_out_again(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    pool = world.pool("chat", flash)
    (mine,) = until("the pool is granted", lambda: (world.cache_node(node) or {}).get("spec", {}).get("pools"))

    stranger = mine | {"uid": "11111111-0000-4000-8000-000000000000", "name": "stranger"}
    world.server.merge(f"{KVTIER}/cachenodes/{node}", {"spec": {"pools": [mine, stranger]}})

    until("the stranger is gone", lambda: (world.cache_node(node) or {})["spec"]["pools"] == [mine])
    assert mine["uid"] == pool["metadata"]["uid"]


def test_change_of_a_class_rolls_out_node_by_node(world: World) -> None:
    nodes = [world.node("n1"), world.node("n2")]
    flash = world.tier_class("flash")
    until("both pods run", lambda: world.run_pods(flash) == 2)
    for node in nodes:
        world.report_serving(node)
    until("the class is ready", lambda: world.verdict(f"tierclasses/{flash}", "Ready")[0] == "True")
    before = {pod["metadata"]["uid"] for pod in world.pods(flash)}

    change = {"spec": {"tiers": {"dram": {"capacityPerNode": "2Gi"}}}}
    world.server.merge(f"{KVTIER}/tierclasses/{flash}", change)

    def counts() -> Object:
        return ((world.class_(flash) or {}).get("status") or {}).get("nodes", {})

    until("the rollout is told", lambda: world.verdict(f"tierclasses/{flash}", "Progressing") == ("True", "RollingOut"))
    until("every node is updated", lambda: world.run_pods(flash) and counts().get("updated") == 2)
    config = yaml.safe_load((world.config_map(flash) or {})["data"]["store.yaml"])
    assert config["arena"]["capacity"] == "2Gi"
    assert not before & {pod["metadata"]["uid"] for pod in world.pods(flash)}
    assert {entry["spec"]["tiers"]["dram"]["capacityPerNode"] for entry in world.cache_nodes(flash)} == {"2Gi"}
    assert (world.class_(flash) or {})["status"]["observedGeneration"] == 2


def test_contested_node_goes_to_the_older_class(world: World) -> None:
    node = world.node("n1")
    older = world.tier_class("zz")
    created = (world.class_(older) or {})["metadata"]["creationTimestamp"]
    newer = until("a second has passed", lambda: _made_later(world, created))

    until("the loser says so", lambda: world.verdict(f"tierclasses/{newer}", "Ready") == ("False", "NodesContested"))
    message = conditions(world.class_(newer))["Ready"]["message"]
    assert message == (
        f"TierClass {older}, created earlier, has {node}, which {newer} selects too; narrow spec.nodeSelector of one "
        "of them"
    )
    assert (world.cache_node(node) or {})["spec"]["tierClass"] == older


def _made_later(world: World, created: str) -> str:
    """A class that is younger than `created` by a second at least, or empty."""
    name = world.tier_class(f"aa{len(world._made)}")
    if (world.class_(name) or {})["metadata"]["creationTimestamp"] > created:
        return name
    world.server.delete(f"{KVTIER}/tierclasses/{name}")
    return ""


def test_failures_that_depend_on_other_objects_are_conditions(world: World) -> None:
    tainted = world.node("n1", taints=[{"key": "dedicated", "value": "db", "effect": "NoSchedule"}])
    flash = world.tier_class("flash")
    nowhere = world.tier_class("nowhere", selector={"test": "no-such-value"})
    pools = {
        "TierClassNotFound": world.pool("lost", "no-such-class"),
        "QuotaExceedsCapacity": world.pool("large", flash, quota={"dram": "64Gi"}),
        "NvmeNotInClass": world.pool("nvme", flash, quota={"dram": "256Mi", "nvme": "1Gi"}),
    }

    until("the taint is told", lambda: world.verdict(f"tierclasses/{flash}", "Degraded") == ("True", "NodeTainted"))
    assert (
        f"node {tainted} has the taint dedicated=db:NoSchedule"
        in (conditions(world.class_(flash))["Degraded"]["message"])
    )
    until(
        "the selector is told",
        lambda: world.verdict(f"tierclasses/{nowhere}", "Ready") == ("False", "NoNodesSelected"),
    )
    for reason, pool in pools.items():
        path = f"namespaces/default/cachepools/{pool['metadata']['name']}"
        until(f"{reason} is told", lambda path=path, reason=reason: world.verdict(path, "Ready") == ("False", reason))


def test_node_without_room_is_told_with_the_shortfall(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash", tiers={"dram": {"capacityPerNode": "16Gi"}})
    (pod,) = until("there is a pod", lambda: world.pods(flash))
    path = f"/api/v1/namespaces/kvtier-system/pods/{pod['metadata']['name']}"
    stated = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
    world.server.merge(f"{path}/status", {"status": {"conditions": [stated]}})

    until("no room is told", lambda: world.verdict(f"tierclasses/{flash}", "Degraded") == ("True", "NoRoom"))
    message = conditions(world.class_(flash))["Degraded"]["message"]
    wanted = store_memory_bytes(Tiers.model_validate({"dram": {"capacityPerNode": "16Gi"}}))
    assert message == (
        f"node {node} has no room for the store: it requests {about(wanted)} of memory, 8Gi of the node's 8Gi are "
        f"free, {about(wanted - (8 << 30))} are missing; lower spec.tiers.dram.capacityPerNode, or move other pods away"
    )


def test_what_nobody_changed_is_not_written_again(world: World) -> None:
    node, flash = world.node("n1"), world.tier_class("flash")
    until("the pod runs", lambda: world.run_pods(flash) == 1)
    world.report_serving(node)
    until(
        "the class is settled", lambda: world.verdict(f"tierclasses/{flash}", "Progressing") == ("False", "RolledOut")
    )
    until("the class is ready", lambda: world.verdict(f"tierclasses/{flash}", "Ready")[0] == "True")

    def versions() -> list[str]:
        found = [world.class_(flash), world.cache_node(node), world.config_map(flash)]
        generation = (world.daemon_set(flash) or {})["metadata"]["generation"]
        return [*((entry or {})["metadata"]["resourceVersion"] for entry in found), generation]

    before = versions()
    for number in range(3):
        pool = world.pool(f"mark{number}", "no-such-class")
        path = f"namespaces/default/cachepools/{pool['metadata']['name']}"
        until("another pass is over", lambda path=path: world.verdict(path, "Ready")[0] == "False")
    assert versions() == before


def test_object_stored_under_another_definition_stops_nobody_else(world: World) -> None:
    node = world.node("n1")
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tierclasses.kvtier.io"
    found = world.server.get(definition)
    assert found is not None
    versions = found["spec"]["versions"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    loose = [version | {"schema": {"openAPIV3Schema": anything}} for version in versions]
    world.server.merge(definition, {"spec": {"versions": loose}})
    try:
        bad = until("the loose definition is in use", lambda: _stored(world, {"dram": {"capacityPerNode": "lots"}}))
    finally:
        world.server.merge(definition, {"spec": {"versions": versions}})
    good = world.tier_class("good")

    until(
        "the good class has its node", lambda: (world.cache_node(node) or {}).get("spec", {}).get("tierClass") == good
    )
    until("the bad one is told", lambda: world.verdict(f"tierclasses/{bad}", "Degraded") == ("True", "InvalidSpec"))
    assert "tiers.dram.capacityPerNode" in conditions(world.class_(bad))["Degraded"]["message"]
    assert world.daemon_set(bad) is None


def _stored(world: World, tiers: Object) -> str:
    """Name of the class, or empty while the API server still goes by its former definition."""
    try:
        return world.tier_class("bad", tiers=tiers)
    except ApiException as error:
        assert error.status == 422
        return ""
