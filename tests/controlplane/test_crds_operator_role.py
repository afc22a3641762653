"""The operator's roles suffice: it runs here as a process with its own account's token, and is refused nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.cluster.cluster import Cluster
from tests.controlplane.crds_accounts import chart_access, token_kubeconfig
from tests.controlplane.crds_api import Api, Object, connect, edited, resource
from tests.controlplane.test_crds_rules import BASES

NAMESPACE = "operator-role"
NODE = "role-a"
CLASS = "role-test"
PATIENCE_S = 60


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.5)


@contextmanager
def operator(kubeconfig: Path, log: Path) -> Iterator[None]:
    """The operator as a process, as the chart's Deployment starts it."""
    environment = os.environ | {
        "KUBECONFIG": str(kubeconfig),
        "KVTIER_NAMESPACE": NAMESPACE,
        "KVTIER_STORE_IMAGE": "none.example/store",
        "KVTIER_STORE_SERVICE_ACCOUNT": "kvtier-store",
        "KVTIER_STORE_PRIORITY_CLASS": "kvtier-store",
        "KVTIER_HEALTH_ENDPOINT": "http://127.0.0.1:0/healthz",
    }
    program = "from kvtier_operator.main import main; main()"
    with log.open("wb") as output:
        running = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=output, stderr=output)
    try:
        yield
        assert running.poll() is None, log.read_text()
    finally:
        running.terminate()
        running.wait(timeout=PATIENCE_S)


@pytest.fixture
def api(control_plane: Cluster) -> Iterator[Api]:
    api = connect(control_plane.programs["kubectl"], control_plane.kubeconfig)
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux", "role-test": "yes"}},
    }
    with chart_access(api, control_plane.programs["helm"], NAMESPACE):
        api.do("apply", "-f-", document=node)
        try:
            yield api
        finally:
            # A test that failed half-way leaves a class that nobody drains any more.
            api.run("patch", "tierclass", CLASS, "--type=merge", '--patch={"metadata":{"finalizers":[]}}')
            for left in (f"tierclass/{CLASS}", f"cachepool/{CLASS}", f"cachenode/{NODE}", f"node/{NODE}"):
                api.do("delete", left, "--ignore-not-found")


def test_operator_does_its_work_with_the_roles_of_the_chart(api: Api, tmp_path: Path) -> None:
    tier_class = resource("TierClass", edited(BASES["TierClass"], {"nodeSelector": {"role-test": "yes"}}), CLASS)
    pool = resource("CachePool", edited(BASES["CachePool"], {"tierClass": CLASS}), CLASS)

    def exists(*words: str) -> bool:
        return bool(api.do("get", *words, "--ignore-not-found", "-oname").strip())

    def condition(kind: str) -> Object:
        found = json.loads(api.do("get", kind, CLASS, "-ojson")).get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == "Ready"), {})

    log = tmp_path / "operator.log"
    with operator(token_kubeconfig(api, tmp_path, NAMESPACE, "kvtier-operator"), log):
        api.do("apply", "-f-", document=tier_class)
        api.do("apply", "-f-", document=pool)
        until("the store's DaemonSet exists", lambda: exists("daemonset", f"--namespace={NAMESPACE}"))
        until("the CacheNode exists", lambda: exists("cachenode", NODE))
        until("the class has a status", lambda: bool(condition("tierclass")))
        until("the pool has a status", lambda: bool(condition("cachepool")))
        until("an Event tells of it", lambda: CLASS in api.do("get", "events", "--namespace=default"))
        api.do("delete", "--wait=false", "-f-", document=tier_class)
        until("its node is drained", lambda: "true" in api.do("get", "cachenode", NODE, "-ojsonpath={.spec.drain}"))
        api.do("delete", "node", NODE)
        until("the class is gone", lambda: not exists("tierclass", CLASS))
        until("its CacheNode is gone", lambda: not exists("cachenode", NODE))
        until("its DaemonSet is gone", lambda: not exists("daemonset", f"--namespace={NAMESPACE}"))

    refused = [line for line in log.read_text().splitlines() if "forbidden" in line.lower() or "403" in line]
    assert refused == []
