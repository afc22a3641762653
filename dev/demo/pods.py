"""The demo's manifests that are made, not written: the engine's pods and the folders they mount. Pure.

The torch environment is too large for an image, so the pods mount it, and the model, through read-only
claims on folders of the node. That is the demo's own way; with it, too, the pods keep to Pod Security
"restricted", which their namespace enforces.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

NAMESPACE = "demo"
POOL = "demo"
ENGINE_SCRIPT = "engine.py"
FOLDERS = ("environment", "model")
CLIENT_IN_IMAGE = "/opt/kvtier/project"

Manifest = dict[str, Any]


def namespace() -> Manifest:
    """The engines' namespace, whose pods must keep to Pod Security "restricted"."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def script(text: str) -> Manifest:
    """The engine's program as a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "engine", "namespace": NAMESPACE},
        "data": {ENGINE_SCRIPT: text},
    }


def folder(name: str, path: Path) -> list[Manifest]:
    """A folder of the node as a volume, and the namespace's read-only claim on it."""
    size = {"storage": "1Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{NAMESPACE}-{name}"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "capacity": size,
            "claimRef": {"name": name, "namespace": NAMESPACE},
            "hostPath": {"path": str(path), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": size},
            "storageClassName": "",
            "volumeName": f"{NAMESPACE}-{name}",
        },
    }
    return [volume, claim]


def engine_pod(sample: Manifest, name: str, *, image: str, arguments: list[str]) -> Manifest:
    """The sample pod of an engine (samples/engine.yaml) with the demo's engine in it; it takes its turns and ends.

    `image` is the sidecar's: it has a Python and kvtier's client, and the rest is mounted.
    """
    pod = copy.deepcopy(sample)
    pod["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "demo-engine"}}
    spec = pod["spec"]
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False}
    spec["initContainers"][0]["image"] = image
    spec["containers"][0] |= _engine(image, arguments)
    spec["containers"][0]["volumeMounts"] += [
        {"name": name, "mountPath": f"/engine/{name}", "readOnly": True} for name in ("script", *FOLDERS)
    ]
    spec["volumes"][0]["csi"]["volumeAttributes"]["pool"] = POOL
    spec["volumes"] += [
        {"name": "script", "configMap": {"name": "engine"}},
        *({"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in FOLDERS),
    ]
    return pod


def _engine(image: str, arguments: list[str]) -> Manifest:
    return {
        "image": image,
        "command": ["python3", f"/engine/script/{ENGINE_SCRIPT}", "--model", "/engine/model", *arguments],
        "env": [
            {"name": "PYTHONPATH", "value": f"/engine/environment:{CLIENT_IN_IMAGE}"},
            {"name": "HOME", "value": "/nonexistent"},
        ],
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
    }
