"""Objects as the API server sends them -> facts. Pure.

An object that does not fit its model (written under another version of the CRD, say) is read as far as it
goes and marked; it never stops the reading of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from kvtier_crds.models import (
    CacheNodeSpec,
    CacheNodeStatus,
    CachePoolSpec,
    CachePoolStatus,
    TierClassSpec,
    TierClassStatus,
)
from kvtier_crds.names import LABEL_TIER_CLASS
from pydantic import BaseModel, ValidationError

from kvtier_operator.names import ANNOTATION_APPLIED_HASH, ANNOTATION_SPEC_HASH
from kvtier_operator.view.facts import (
    CacheNodeFacts,
    ClassFacts,
    Meta,
    NodeFacts,
    OwnedFacts,
    PodFacts,
    PoolFacts,
    Taint,
)
from kvtier_operator.view.requests import pod_requests

Raw = Mapping[str, Any]
ModelT = TypeVar("ModelT", bound=BaseModel)

_STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
"""Reasons for which a container waits that are no failure."""


def read_meta(raw: Raw) -> Meta:
    """What every object has."""
    meta = raw["metadata"]
    return Meta(
        name=meta["name"],
        uid=meta.get("uid", ""),
        namespace=meta.get("namespace", ""),
        generation=meta.get("generation", 0),
        resource_version=meta.get("resourceVersion", ""),
        created=_read_time(meta.get("creationTimestamp")),
        deleting_since=_read_time(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
        labels=dict(meta.get("labels") or {}),
        annotations={
            key: value
            for key, value in (meta.get("annotations") or {}).items()
            if key in (ANNOTATION_APPLIED_HASH, ANNOTATION_SPEC_HASH)
        },
    )


def read_class(raw: Raw) -> ClassFacts:
    """A TierClass."""
    spec, fault = _fit(TierClassSpec, raw.get("spec") or {})
    status, _ = _fit(TierClassStatus, raw.get("status") or {})
    return ClassFacts(read_meta(raw), spec, status, fault)


def read_pool(raw: Raw) -> PoolFacts:
    """A CachePool."""
    spec, fault = _fit(CachePoolSpec, raw.get("spec") or {})
    status, _ = _fit(CachePoolStatus, raw.get("status") or {})
    return PoolFacts(read_meta(raw), spec, status, fault)


def read_cache_node(raw: Raw) -> CacheNodeFacts:
    """A CacheNode. A status that does not fit counts as none."""
    raw_spec = raw.get("spec") or {}
    spec, _ = _fit(CacheNodeSpec, raw_spec)
    if spec:
        spec = spec.model_copy(update={"pools": sorted(spec.pools, key=lambda pool: pool.uid)})
    status, _ = _fit(CacheNodeStatus, raw.get("status") or {})
    return CacheNodeFacts(
        meta=read_meta(raw),
        tier_class=str(raw_spec.get("tierClass", "")),
        drain=raw_spec.get("drain") is True,
        spec=spec,
        raw_spec=raw_spec,
        status=status or CacheNodeStatus(),
    )


def read_node(raw: Raw) -> NodeFacts:
    """A Node."""
    status = raw.get("status") or {}
    return NodeFacts(
        meta=read_meta(raw),
        taints=tuple(
            Taint(taint.get("key", ""), taint.get("value", ""), taint.get("effect", ""))
            for taint in (raw.get("spec") or {}).get("taints") or ()
        ),
        ready=_condition_status(status, "Ready") == "True",
        allocatable=dict(status.get("allocatable") or {}),
    )


def read_pod(raw: Raw) -> PodFacts:
    """A pod of a store."""
    meta = read_meta(raw)
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    containers = status.get("containerStatuses") or ()
    return PodFacts(
        meta=meta,
        tier_class=meta.labels.get(LABEL_TIER_CLASS, ""),
        node=spec.get("nodeName") or _wanted_node(spec),
        running=any("running" in (container.get("state") or {}) for container in containers),
        ready=_condition_status(status, "Ready") == "True" and meta.deleting_since is None,
        unschedulable=_unschedulable(status),
        failing=next((text for text in map(_container_failure, containers) if text), ""),
        spec_hash=meta.annotations.get(ANNOTATION_SPEC_HASH, ""),
        started=_read_time(status.get("startTime")),
        requests=pod_requests(spec),
    )


def read_owned(raw: Raw) -> OwnedFacts:
    """A ConfigMap or DaemonSet made for a TierClass."""
    meta = read_meta(raw)
    return OwnedFacts(
        meta=meta,
        tier_class=meta.labels.get(LABEL_TIER_CLASS, ""),
        applied_hash=meta.annotations.get(ANNOTATION_APPLIED_HASH, ""),
        raw={key: raw[key] for key in ("data", "spec") if key in raw}
        | {"metadata": {key: raw["metadata"].get(key) or {} for key in ("labels", "annotations")}},
    )


def _fit(model: type[ModelT], raw: Raw) -> tuple[ModelT | None, str]:
    """The model, or None and every fault in words. Fields of newer releases are passed over."""
    try:
        return model.model_validate(raw, extra="ignore"), ""
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc'])) or 'spec'}: {fault['msg']}" for fault in error.errors())
        return None, "; ".join(faults)


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _condition(status: Raw, kind: str) -> Raw:
    return next((entry for entry in status.get("conditions") or () if entry.get("type") == kind), {})


def _condition_status(status: Raw, kind: str) -> str:
    return str(_condition(status, kind).get("status", "Unknown"))


def _unschedulable(status: Raw) -> str:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "no reason given")
    return ""


def _wanted_node(spec: Raw) -> str:
    """The node that a DaemonSet made a pod for, before it is bound."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for need in term.get("matchFields") or ():
            if need.get("key") == "metadata.name" and need.get("operator") == "In" and need.get("values"):
                return str(need["values"][0])
    return ""


def _container_failure(container: Raw) -> str:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if not waiting or reason in _STARTING:
        return ""
    ended = (container.get("lastState") or {}).get("terminated") or {}
    last_words = (ended.get("message") or "").strip().splitlines()
    detail = last_words[-1] if last_words else waiting.get("message", "")
    code = f" with exit code {ended['exitCode']}" if "exitCode" in ended else ""
    return f"{reason}{code}: {detail}" if detail else f"{reason}{code}"
