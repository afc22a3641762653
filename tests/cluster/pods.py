"""Small pods for the tests of the cluster itself."""

from __future__ import annotations

import json
from typing import Any

from dev.cluster import Cluster

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
SERVE = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8080)"
WAIT_S = 120


def pod(name: str, image: str, script: str, **spec: Any) -> dict[str, Any]:
    """A pod that satisfies Pod Security "restricted" and runs `script` in Python."""
    main = {"name": "main", "image": image, "command": ["python3", "-c", script], "securityContext": RESTRICTED}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [main],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            **spec,
        },
    }


def on_node(document: dict[str, Any], node: str) -> dict[str, Any]:
    """The same pod, for that node only."""
    return {**document, "spec": {**document["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}


def fetch(url: str) -> str:
    """A script that prints the status of `url`, patient for ten seconds with a server that is only starting."""
    return f"""
import time, urllib.request
for attempt in range(20):
    try:
        print(urllib.request.urlopen({url!r}, timeout=3).status)
        break
    except OSError as error:
        print(error)
        time.sleep(0.5)
"""


def apply(cluster: Cluster, *documents: dict[str, Any]) -> None:
    """Create the objects."""
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def wait(cluster: Cluster, what: str, condition: str, *arguments: str) -> None:
    """Wait until the condition holds."""
    cluster.kubectl("wait", what, f"--for={condition}", f"--timeout={WAIT_S}s", *arguments, timeout_s=WAIT_S + 10)


def ready(cluster: Cluster, name: str) -> str:
    """The address of the pod, once it is Ready."""
    wait(cluster, f"pod/{name}", "condition=Ready")
    return cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")


def finished(cluster: Cluster, name: str) -> str:
    """The last line that the pod's main container printed, once it succeeded."""
    wait(cluster, f"pod/{name}", "jsonpath={.status.phase}=Succeeded")
    return cluster.kubectl("logs", name, "-c", "main").strip().splitlines()[-1]
