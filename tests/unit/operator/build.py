"""Views for tests, built from objects as the API server would send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kvtier_operator.settings import Settings, StoreSettings
from kvtier_operator.view.facts import (
    CacheNodeFacts,
    ClassFacts,
    NodeFacts,
    OwnedFacts,
    PodFacts,
    PoolFacts,
    View,
)
from kvtier_operator.view.read import read_cache_node, read_class, read_node, read_owned, read_pod, read_pool

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NAMESPACE = "kvtier-system"
SETTINGS = Settings(namespace=NAMESPACE, store=StoreSettings(image="kvtier/store:1", service_account="kvtier-store"))
DRAM_ONLY = {"dram": {"capacityPerNode": "8Gi"}}
WITH_NVME = DRAM_ONLY | {"nvme": {"capacityPerNode": "100Gi", "devices": [{"name": "disk0", "path": "/mnt/nvme0"}]}}

Object = dict[str, Any]


def ago(**delta: float) -> str:
    """A time before NOW, as an object carries it."""
    return (NOW - timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, uid: str = "", **more: Any) -> Object:
    return {"name": name, "uid": uid or f"uid-{name}", "generation": 1, "resourceVersion": "7"} | more


def condition(kind: str, status: str, reason: str, message: str = "", **more: Any) -> Object:
    stated = {"type": kind, "status": status, "reason": reason, "message": message}
    return stated | {"lastTransitionTime": ago(hours=1)} | more


def tier_class(
    name: str = "flash",
    *,
    selector: Mapping[str, str] | None = None,
    tiers: Object | None = None,
    created: str | None = None,
    deleting: str | None = None,
    finalizers: Sequence[str] = ("kvtier.io/drain",),
    status: Object | None = None,
    **spec: Any,
) -> ClassFacts:
    """A TierClass; it selects nodes with the label gpu=yes unless told otherwise."""
    stamps = {"creationTimestamp": created or ago(days=1)} | ({"deletionTimestamp": deleting} if deleting else {})
    return read_class(
        {
            "metadata": meta(name, **stamps, finalizers=list(finalizers)),
            "spec": {"nodeSelector": {"gpu": "yes"} if selector is None else selector, "tiers": tiers or DRAM_ONLY}
            | spec,
            "status": status or {},
        }
    )


def pool(name: str = "chat", namespace: str = "inference", *, status: Object | None = None, **spec: Any) -> PoolFacts:
    wanted = {"tierClass": "flash", "quota": {"dram": "2Gi"}} | spec
    raw_meta = meta(name, f"uid-{namespace}-{name}", namespace=namespace, creationTimestamp=ago(hours=2))
    return read_pool({"metadata": raw_meta, "spec": wanted, "status": status or {}})


def node(
    name: str = "n1",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Object] = (),
    ready: bool = True,
    allocatable: Mapping[str, str] | None = None,
) -> NodeFacts:
    given = {"kubernetes.io/os": "linux"} | ({"gpu": "yes"} if labels is None else dict(labels))
    return read_node(
        {
            "metadata": meta(name, labels=given),
            "spec": {"taints": list(taints)},
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                "allocatable": allocatable or {"cpu": "8", "memory": "16Gi", "pods": "110"},
            },
        }
    )


def cache_node(
    name: str = "n1",
    of: str = "flash",
    *,
    spec: Object | None = None,
    conditions: Sequence[Object] = (),
    created: str | None = None,
    status: Object | None = None,
    **changes: Any,
) -> CacheNodeFacts:
    """A CacheNode without pools; `changes` go over its spec."""
    wanted = spec if spec is not None else {"tierClass": of, "tiers": DRAM_ONLY, "pools": [], "drain": False} | changes
    return read_cache_node(
        {
            "metadata": meta(name, creationTimestamp=created or ago(hours=1)),
            "spec": wanted,
            "status": (status or {}) | {"conditions": list(conditions)},
        }
    )


SERVING = (
    condition("Preflight", "True", "PreflightPassed"),
    condition("Ready", "True", "Serving"),
)

REQUESTS = {"cpu": "250m", "memory": "9Gi"}


def pod(
    on: str = "n1",
    of: str = "flash",
    *,
    name: str = "",
    ready: bool = True,
    running: bool = True,
    spec_hash: str = "",
    unschedulable: str = "",
    waiting: Object | None = None,
    ended: Object | None = None,
    started: str | None = None,
    requests: Mapping[str, str] | None = None,
) -> PodFacts:
    """A store's pod."""
    state = {"waiting": waiting} if waiting else ({"running": {}} if running else {})
    container = {"state": state, "lastState": {"terminated": ended} if ended else {}}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    if unschedulable:
        conditions.append(
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
        )
    return read_pod(
        {
            "metadata": meta(
                name or f"kvtier-store-{of}-{on}",
                namespace=NAMESPACE,
                labels={"kvtier.io/tier-class": of},
                annotations={"kvtier.io/spec-hash": spec_hash},
            ),
            "spec": {
                "nodeName": on,
                "containers": [
                    {"resources": {"requests": requests if requests is not None else {"cpu": "250m", "memory": "9Gi"}}}
                ],
            },
            "status": {
                "conditions": conditions,
                "containerStatuses": [] if unschedulable else [container],
                "startTime": started or ago(hours=1),
            },
        }
    )


def owned(body: Object, uid: str = "") -> OwnedFacts:
    """What the operator made, as it would come back."""
    return read_owned(body | {"metadata": body["metadata"] | {"uid": uid or "uid-owned", "resourceVersion": "9"}})


def view(*entries: Any) -> View:
    """A view of these facts; DaemonSets and ConfigMaps go in as objects."""
    kinds: dict[str, dict[Any, Any]] = {
        name: {}
        for name in ("classes", "pools", "cache_nodes", "nodes", "pods", "daemon_sets", "config_maps")
    }  # fmt: skip
    for entry in entries:
        match entry:
            case ClassFacts():
                kinds["classes"][entry.meta.name] = entry
            case PoolFacts():
                kinds["pools"][entry.meta.namespace, entry.meta.name] = entry
            case CacheNodeFacts():
                kinds["cache_nodes"][entry.meta.name] = entry
            case NodeFacts():
                kinds["nodes"][entry.meta.name] = entry
            case PodFacts():
                kinds["pods"][entry.meta.namespace, entry.meta.name] = entry
            case {"kind": "DaemonSet"}:
                kinds["daemon_sets"][entry["metadata"]["name"]] = owned(entry)
            case {"kind": "ConfigMap"}:
                kinds["config_maps"][entry["metadata"]["name"]] = owned(entry)
            case _:
                raise TypeError(entry)
    return View(**kinds)
