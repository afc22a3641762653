"""What pods request, as the scheduler counts it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvtier_operator.quantities import base_units

Raw = Mapping[str, Any]


def pod_requests(spec: Raw) -> dict[str, int]:
    """What a pod requests: its containers and sidecars together, or its largest init container, plus overhead."""
    steady: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        steady.update(_requests(container))
    start: Counter[str] = Counter()
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            steady.update(_requests(container))
        else:
            start |= Counter(_requests(container))
    total = steady | start
    total.update(_units(spec.get("overhead") or {}))
    return dict(total)


def sum_requests(pods: Iterable[Raw]) -> dict[str, int]:
    """What all pods that have not finished request together."""
    total: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            total.update(pod_requests(pod.get("spec") or {}))
            total["pods"] += 1
    return dict(total)


def _requests(container: Raw) -> dict[str, int]:
    return _units((container.get("resources") or {}).get("requests") or {})


def _units(quantities: Mapping[str, str]) -> dict[str, int]:
    return {resource: base_units(resource, quantity) for resource, quantity in quantities.items()}
