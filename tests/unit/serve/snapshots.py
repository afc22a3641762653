"""Snapshots for tests, as a store sends them."""

from __future__ import annotations

from typing import Any

from kvtier_agent.control import DeviceSnapshot, PoolSnapshot, Snapshot, TierUse

MIB = 1 << 20
COUNTER_NAMES = """
    lookups blocks_asked blocks_hit pages_read_dram pages_read_nvme bytes_read_dram bytes_read_nvme
    bytes_read_nvme_direct pages_stored bytes_stored pages_written_nvme bytes_written_nvme
    pages_evicted_dram pages_evicted_nvme pages_lost_dram pages_lost_nvme chunks_lost puts puts_refused
    requests_read_nvme bytes_cleaned_nvme blocks_expired blocks_deleted blocks_not_offered
    blocks_without_room blocks_late
"""
COUNTERS = {name: number for number, name in enumerate(COUNTER_NAMES.split(), 1)}


def pool(**fields: Any) -> PoolSnapshot:
    return PoolSnapshot(
        **{
            "uid": "pool-uid-1",
            "namespace": "team-a",
            "name": "chat",
            "tiers": {"dram": TierUse(512 * MIB, 300 * MIB, 40), "nvme": TierUse(1024 * MIB, 700 * MIB, 90)},
            "blocks": 100,
            "connections": 2,
            "recent_asked": 200,
            "recent_hit": 175,
            "counters": COUNTERS,
        }
        | fields
    )


def snapshot(**fields: Any) -> Snapshot:
    return Snapshot(
        **{
            "ready": True,
            "message": "",
            "generation": 3,
            "drained": False,
            "node": "n1",
            "tiers": {"dram": TierUse(1536 * MIB, 300 * MIB, 40), "nvme": TierUse(2048 * MIB, 700 * MIB, 90)},
            "pools": (pool(),),
            "devices": (DeviceSnapshot("d0", "ready"),),
        }
        | fields
    )
