"""CacheNodes for tests, as the API server would give them."""

from __future__ import annotations

from typing import Any

from kvtier_agent.cachenode import CacheNode, parse_cache_node


def raw_cache_node(
    *,
    tier_class: str = "gpu",
    dram: str = "128Mi",
    huge_pages: str = "none",
    nvme: str | None = "1Gi",
    paths: tuple[str, ...] = ("/mnt/nvme0",),
    devices: tuple[dict[str, Any], ...] = (),
    pools: tuple[dict[str, Any], ...] = (),
    drain: bool = False,
    generation: int = 3,
    conditions: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    tiers: dict[str, Any] = {"dram": {"capacityPerNode": dram, "hugePages": huge_pages}}
    if nvme:
        plain = [{"name": f"d{number}", "path": path} for number, path in enumerate(paths)]
        tiers["nvme"] = {"capacityPerNode": nvme, "devices": list(devices) or plain}
    return {
        "metadata": {
            "name": "n1",
            "uid": "77777777-0000-0000-0000-000000000000",
            "generation": generation,
            "resourceVersion": "1",
        },
        "spec": {"tierClass": tier_class, "tiers": tiers, "pools": list(pools), "drain": drain},
        "status": {"conditions": list(conditions)},
    }


def cache_node(**fields: Any) -> CacheNode:
    return parse_cache_node(raw_cache_node(**fields))


def condition(kind: str, status: str, reason: str = "Some", message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 3,
    }
