"""The chart's service accounts before the API server: its roles and policies, and tokens as pods have them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.crds_api import COMMAND_S, REPOSITORY, Api, Object

ACCESS = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


@contextmanager
def chart_access(api: Api, helm: Path, namespace: str) -> Iterator[None]:
    """Accounts, roles and policies of the chart kvtier, in a namespace of their own, until the block ends."""
    command = [str(helm), "template", "kvtier", str(REPOSITORY / "charts/kvtier"), "--namespace", namespace]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMMAND_S)
    items = [o for o in yaml.safe_load_all(shown.stdout) if o and o["kind"] in ACCESS]
    documents: Object = {"apiVersion": "v1", "kind": "List", "items": items}
    api.do("create", "namespace", namespace)
    api.do("apply", "-f-", document=documents)
    try:
        yield
    finally:
        api.do("delete", "--ignore-not-found", "-f-", document=documents)
        api.do("delete", "namespace", namespace)


def token_kubeconfig(api: Api, folder: Path, namespace: str, account: str, *options: str) -> Path:
    """A kubeconfig with a fresh token of the account and nothing else; `options` bind it."""
    token = api.do("create", "token", account, f"--namespace={namespace}", *options).strip()
    config: dict[str, Any] = yaml.safe_load(api.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
