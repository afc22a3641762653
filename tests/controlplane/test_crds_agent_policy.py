"""An agent's token writes the status of its own node's CacheNode and nothing else."""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from kvtier_agent.cachenode import ApiError, CacheNode, CacheNodeClient

from dev.cluster.cluster import Cluster
from tests.controlplane.crds_accounts import chart_access, token_kubeconfig
from tests.controlplane.crds_api import Api, Object, connect, resource
from tests.controlplane.test_crds_rules import BASES

NAMESPACE = "agent-policy"
NODES = ("policy-a", "policy-b")
ACTIVE_S = 30
ACCOUNTS = pytest.mark.parametrize("account", ["kvtier-node", "kvtier-store"])


def pod(account: str, node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{account}-{node}", "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": "none.example/agent"}],
        },
    }


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Iterator[Api]:
    """The API server with the chart's roles and policy, two nodes with CacheNodes, and agents' pods on the first."""
    api = connect(control_plane.programs["kubectl"], control_plane.kubeconfig)
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in NODES]
    cache_nodes = [resource("CacheNode", BASES["CacheNode"], name) for name in NODES]
    objects: Object = {"apiVersion": "v1", "kind": "List", "items": [*nodes, *cache_nodes]}
    with chart_access(api, control_plane.programs["helm"], NAMESPACE):
        try:
            api.do("apply", "-f-", document=objects)
            for account in ("kvtier-node", "kvtier-store"):
                api.do("apply", "-f-", document=pod(account, NODES[0]))
            yield api
        finally:
            api.do("delete", "pods", "--all", f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
            api.do("delete", "-f-", document=objects)


def agent_client(api: Api, folder: Path, account: str, node: str, *, bound: bool = True) -> CacheNodeClient:
    """The agents' own client, for the CacheNode of `node`, with the token of a pod on the first node."""
    binding = ("--bound-object-kind=Pod", f"--bound-object-name={account}-{NODES[0]}") if bound else ()
    config = yaml.safe_load(token_kubeconfig(api, folder, NAMESPACE, account, *binding).read_text())
    token = folder / "token"
    token.write_text(config["users"][0]["user"]["token"])
    cluster = config["clusters"][0]["cluster"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    return CacheNodeClient(cluster["server"], node, tls=tls, token=token)


async def read(client: CacheNodeClient) -> CacheNode:
    async for found in client.watch():
        assert found is not None
        return found
    raise AssertionError("a watch never ends")


def conditions() -> Object:
    condition = {
        "type": "Preflight",
        "status": "True",
        "reason": "PreflightPassed",
        "message": "",
        "lastTransitionTime": datetime.now(UTC).isoformat(),
    }
    return {"conditions": [condition]}


async def refusal(client: CacheNodeClient, node: CacheNode) -> str:
    """Why the API server refuses the status. A new policy takes a moment to be in force."""
    deadline = time.monotonic() + ACTIVE_S
    while time.monotonic() < deadline:
        try:
            await client.apply_status(node, "test", conditions())
        except ApiError as error:
            return str(error)
    raise AssertionError("it was admitted")


@ACCOUNTS
async def test_agent_writes_the_status_of_its_own_node(api: Api, tmp_path: Path, account: str) -> None:
    async with agent_client(api, tmp_path, account, NODES[0]) as client:
        applied = await client.apply_status(await read(client), account, conditions())
    assert applied.conditions["Preflight"]["reason"] == "PreflightPassed"


@ACCOUNTS
async def test_agent_is_refused_the_status_of_another_node(api: Api, tmp_path: Path, account: str) -> None:
    async with agent_client(api, tmp_path, account, NODES[1]) as client:
        said = await refusal(client, await read(client))
    assert f"this token is of node {NODES[0]}, the object is {NODES[1]}" in said


async def test_token_that_is_bound_to_no_pod_is_refused(api: Api, tmp_path: Path) -> None:
    async with agent_client(api, tmp_path, "kvtier-node", NODES[0], bound=False) as client:
        said = await refusal(client, await read(client))
    assert f"this token is of node (none), the object is {NODES[0]}" in said


@ACCOUNTS
async def test_agent_cannot_make_a_status_for_a_node_that_has_none(api: Api, tmp_path: Path, account: str) -> None:
    async with agent_client(api, tmp_path, account, NODES[0]) as client:
        absent = replace(await read(client), name="policy-absent")
        said = await refusal(client, absent)
    assert "answers 404" in said or "is of node" in said


@ACCOUNTS
@pytest.mark.parametrize(
    "words",
    [
        ("patch", "cachenodes"),
        ("update", "cachenodes"),
        ("delete", "cachenodes"),
        ("create", "cachenodes"),
        ("get", "secrets"),
        ("list", "pods"),
        ("list", "cachepools"),
        ("create", "serviceaccounts/token"),
    ],
    ids="-".join,
)
def test_agent_may_do_nothing_else(api: Api, account: str, words: tuple[str, str]) -> None:
    user = f"--as=system:serviceaccount:{NAMESPACE}:{account}"
    assert api.run("auth", "can-i", *words, user, "--all-namespaces").stdout.strip() == "no"
