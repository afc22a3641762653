"""The operator as a process against a real API server, and what a kubelet and the agents would write.

Nodes are Node objects without a machine. Pods are made by the real DaemonSet controller; `run_pods` binds them
and reports them ready, and the agents' conditions are applied with the agents' field managers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import load_config
from kubernetes.dynamic import DynamicClient

from dev.cluster import Cluster
from tests.controlplane.crds_api import connect

Object = dict[str, Any]
T = TypeVar("T")
PATIENCE_S = 40.0
POLL_S = 0.05
NAMESPACE = "kvtier-system"
DRAM = {"dram": {"capacityPerNode": "1Gi"}}
KVTIER = "/apis/kvtier.io/v1alpha1"
STORES = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
CONFIGS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class _NoDiscovery:
    def __init__(self, client: DynamicClient, cache_file: str | None) -> None:
        pass


class Server:
    """Requests by path, as administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = Configuration()
        load_config(config_file=str(kubeconfig), client_configuration=configuration)
        self._client = DynamicClient(ApiClient(configuration), discoverer=_NoDiscovery)

    def get(self, path: str) -> Object | None:
        """The object, or None."""
        try:
            return self._call("get", path)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str) -> list[Object]:
        return list(self._call("get", path)["items"])

    def create(self, path: str, body: Object) -> Object:
        return self._call("post", path, body)

    def merge(self, path: str, body: Object) -> Object:
        return self._call("patch", path, body, content_type="application/merge-patch+json")

    def apply(self, path: str, manager: str, body: Object) -> Object:
        options = {"content_type": "application/apply-patch+yaml", "field_manager": manager, "force_conflicts": True}
        return self._call("patch", path, body, **options)

    def delete(self, path: str, **options: Any) -> None:
        with contextlib.suppress(ApiException):
            self._call("delete", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _call(self, method: str, path: str, body: Object | None = None, **options: Any) -> Object:
        reply = self._client.request(method, path, body=body, serialize=False, _request_timeout=15, **options)
        answer: Object = json.loads(reply.data)
        return answer


@dataclass
class World:
    """Nodes, classes and pools of one test, under names of its own; all is removed at its end."""

    server: Server
    kubeconfig: Path
    folder: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    _made: list[str] = field(default_factory=list)
    _operators: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def name(self, stem: str) -> str:
        """A name that no other test has."""
        return f"{stem}-{self.tag}"

    # -------------------------------------------------------------- the operator

    def start_operator(self) -> subprocess.Popen[bytes]:
        """The operator, as its Deployment starts it."""
        environment = os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "KVTIER_NAMESPACE": NAMESPACE,
            "KVTIER_STORE_IMAGE": "none.example/store:1",
            "KVTIER_STORE_SERVICE_ACCOUNT": "default",
            "KVTIER_HEALTH_ENDPOINT": f"http://127.0.0.1:{_free_port()}/healthz",
        }
        program = [str(Path(sys.executable).with_name("kvtier-operator"))]
        with (self.folder / "operator.log").open("ab") as log:
            running = subprocess.Popen(program, env=environment, stdout=log, stderr=log)
        self._operators.append(running)
        return running

    def log(self) -> str:
        """What its operators have said; empty where none was started."""
        path = self.folder / "operator.log"
        return path.read_text() if path.exists() else ""

    # -------------------------------------------------------------- what a user makes

    def node(self, stem: str, labels: Mapping[str, str] | None = None, **spec: Any) -> str:
        """A Node that is ready; by default it carries the label that `tier_class` selects."""
        name = self.name(stem)
        given = {"kubernetes.io/os": "linux"} | ({"test": self.tag} if labels is None else dict(labels))
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": given}, "spec": spec}
        self._create("/api/v1/nodes", body)
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": _now()}
        room = {"cpu": "4", "memory": "8Gi", "pods": "50"}
        status = {"conditions": [ready], "allocatable": room, "capacity": room}
        self.server.merge(f"/api/v1/nodes/{name}/status", {"status": status})
        return name

    def tier_class(self, stem: str, *, tiers: Object | None = None, selector: Object | None = None) -> str:
        name = self.name(stem)
        spec = {"nodeSelector": {"test": self.tag} if selector is None else selector, "tiers": tiers or DRAM}
        self._create(f"{KVTIER}/tierclasses", _resource("TierClass", name, spec))
        return name

    def pool(self, stem: str, tier_class: str, **spec: Any) -> Object:
        """A CachePool in the namespace `default`; returns it as stored."""
        wanted = {"tierClass": tier_class, "quota": {"dram": "256Mi"}} | spec
        return self._create(f"{KVTIER}/namespaces/default/cachepools", _resource("CachePool", self.name(stem), wanted))

    def _create(self, collection: str, body: Object) -> Object:
        made = self.server.create(collection, body)
        self._made.append(f"{collection}/{body['metadata']['name']}")
        return made

    # -------------------------------------------------------------- what is there

    def class_(self, name: str) -> Object | None:
        return self.server.get(f"{KVTIER}/tierclasses/{name}")

    def cache_node(self, node: str) -> Object | None:
        return self.server.get(f"{KVTIER}/cachenodes/{node}")

    def cache_nodes(self, tier_class: str) -> list[Object]:
        every = self.server.items(f"{KVTIER}/cachenodes")
        return [entry for entry in every if entry["spec"]["tierClass"] == tier_class]

    def daemon_set(self, tier_class: str) -> Object | None:
        return self.server.get(f"{STORES}/kvtier-store-{tier_class}")

    def config_map(self, tier_class: str) -> Object | None:
        return self.server.get(f"{CONFIGS}/kvtier-store-{tier_class}")

    def pods(self, tier_class: str) -> list[Object]:
        pods = self.server.items(PODS)
        return [pod for pod in pods if pod["metadata"]["labels"].get("kvtier.io/tier-class") == tier_class]

    def events(self, about: str, namespace: str = "default") -> list[tuple[str, str]]:
        """(reason, message) of the Events about an object."""
        events = self.server.items(f"/api/v1/namespaces/{namespace}/events")
        return [(event["reason"], event["message"]) for event in events if event["involvedObject"]["name"] == about]

    def verdict(self, path: str, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; empty strings where there is none."""
        found = conditions(self.server.get(f"{KVTIER}/{path}")).get(kind, {})
        return found.get("status", ""), found.get("reason", "")

    # -------------------------------------------------------------- what kubelets and agents write

    def run_pods(self, tier_class: str) -> int:
        """Bind the class's pods to their nodes and report them ready; end those being deleted. Returns how many run."""
        running = 0
        for pod in self.pods(tier_class):
            path = f"{PODS}/{pod['metadata']['name']}"
            if pod["metadata"].get("deletionTimestamp"):
                self.server.delete(path, gracePeriodSeconds=0)
                continue
            if not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": _wanted_node(pod)}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
                self.server.create(f"{path}/binding", binding | {"target": target})
            if pod["status"]["phase"] != "Running":
                self.server.merge(f"{path}/status", {"status": _running_status()})
            running += 1
        return running

    def report(self, node: str, manager: str, *stated: tuple[str, str, str], **status: Any) -> None:
        """Apply conditions (type, status, reason) to a CacheNode as one of its agents does."""
        entries = [
            {"type": kind, "status": value, "reason": reason, "message": "", "lastTransitionTime": _now()}
            for kind, value, reason in stated
        ]
        body = {"apiVersion": "kvtier.io/v1alpha1", "kind": "CacheNode", "metadata": {"name": node}}
        self.server.apply(
            f"{KVTIER}/cachenodes/{node}/status", manager, body | {"status": status | {"conditions": entries}}
        )

    def report_serving(self, node: str, pools: Sequence[Object] = ()) -> None:
        """As both agents do once the store serves."""
        self.report(node, "kvtier-node", ("Preflight", "True", "PreflightPassed"), ("Released", "False", "InUse"))
        size = {"capacity": "1Gi", "used": "512Mi"}
        shares = [
            {"uid": pool["metadata"]["uid"], "blocks": 7, "tiers": {"dram": size}, "recentAsked": 8, "recentHit": 7}
            for pool in pools
        ]
        self.report(
            node,
            "kvtier-store",
            ("Ready", "True", "Serving"),
            ("Drained", "False", "NotDraining"),
            tiers={"dram": size},
            pools=shares,
        )

    def report_drained(self, node: str) -> None:
        self.report(node, "kvtier-store", ("Ready", "False", "Draining"), ("Drained", "True", "Flushed"))

    def report_released(self, node: str) -> None:
        self.report(node, "kvtier-node", ("Preflight", "True", "PreflightPassed"), ("Released", "True", "NothingLeft"))

    # -------------------------------------------------------------- the end

    def close(self) -> None:
        """End the operators and remove what the test made, whatever state it is in."""
        for running in self._operators:
            if running.poll() is None:
                running.kill()
            running.wait(timeout=PATIENCE_S)
        for path in reversed(self._made):
            with contextlib.suppress(ApiException):
                self.server.merge(path, {"metadata": {"finalizers": []}})
            self.server.delete(path)
            name = path.rpartition("/")[2]
            for left in (
                f"{KVTIER}/cachenodes/{name}",
                f"{STORES}/kvtier-store-{name}",
                f"{CONFIGS}/kvtier-store-{name}",
            ):
                self.server.delete(left)


@contextlib.contextmanager
def open_world(control_plane: Cluster, folder: Path) -> Iterator[World]:
    """A world on the shared control plane, closed at the end of the block; the operator's log goes with a failure."""
    connect(control_plane.programs["kubectl"], control_plane.kubeconfig)
    server = Server(control_plane.kubeconfig)
    with contextlib.suppress(ApiException):
        server.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    until(
        "the namespace has its account", lambda: server.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
    )
    world = World(server, control_plane.kubeconfig, folder)
    try:
        yield world
        assert "Traceback" not in world.log(), world.log()
    except BaseException:
        print(world.log())
        raise
    finally:
        world.close()


def until(what: str, holds: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What `holds` returns once it is true. Fails after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not (result := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience_s:.0f} s: {what}")
        time.sleep(POLL_S)
    return result


def conditions(found: Object | None) -> Mapping[str, Object]:
    """Conditions by type."""
    return {entry["type"]: entry for entry in ((found or {}).get("status") or {}).get("conditions", ())}


def _resource(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kvtier.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _wanted_node(pod: Object) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _running_status() -> Object:
    started = {"running": {"startedAt": _now()}}
    container = {"name": "store", "ready": True, "restartCount": 0, "image": "", "imageID": "", "state": started}
    ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
    return {"phase": "Running", "startTime": _now(), "conditions": ready, "containerStatuses": [container]}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
