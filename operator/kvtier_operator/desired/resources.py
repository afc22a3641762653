"""What a store's pod requests. Pure arithmetic from the class's tiers.

memory = arena + index + page tables + processes + buffers, rounded up to 1Mi:
- arena: the DRAM capacity; tmpfs pages are charged to the store that touches them. With huge pages it is
  requested as hugepages-* instead, and needs no page tables worth counting.
- index: INDEX_BYTES for every page that DRAM and NVMe can hold. Measured as the process's growth, one page a block,
  1 to 1.4 million of them: 164 to 178 a page in use, 196 at the peak of recovery, while what was staged is linked; the
  rest is for tables that have just grown and what the eviction policy learns. Pages count
  MEAN_PAGE_BYTES, the least that a rank's share of a block of 16 tokens has in models in use; most have ten times
  that. Too little would end in an OOM loop: recovery loads the whole index again. So the store is
  told this number and keeps no more pages than that, however small a pod makes them.
- page tables: 8 bytes for each 4 KiB of the arena, in every process that maps it.
- processes: the store, its attendant, the movers, and one for each nvme device, PROCESS_BYTES each.
- buffers: BUFFER_BYTES for each mover (runs being written and read), SLACK_BYTES for the kernel's side.

Requests equal limits for memory, so that the store is never the one to be evicted for growing. There is a
small CPU request and no CPU limit: throttling would show as latency of every client.
"""

from __future__ import annotations

from typing import Final

from kvtier_crds.models import HugePages, Tiers

from kvtier_operator.quantities import exact, parse_bytes

MI: Final = 1 << 20
MEAN_PAGE_BYTES: Final = 64 << 10
INDEX_BYTES: Final = 256
PROCESS_BYTES: Final = 96 * MI
BUFFER_BYTES: Final = 32 * MI
SLACK_BYTES: Final = 64 * MI
MOVERS: Final = 2
"""Mover processes of a store."""
CPU_REQUEST: Final = "250m"

_HUGE_PAGE_RESOURCE: Final = {HugePages.SIZE_2MI: "hugepages-2Mi", HugePages.SIZE_1GI: "hugepages-1Gi"}


def store_memory_bytes(tiers: Tiers, movers: int = MOVERS) -> int:
    """Memory that a store's pod requests, huge pages left out."""
    dram = parse_bytes(tiers.dram.capacity_per_node)
    nvme = parse_bytes(tiers.nvme.capacity_per_node) if tiers.nvme else 0
    processes = movers + 2 + (len(tiers.nvme.devices) if tiers.nvme else 0)
    index = -(-(dram + nvme) // MEAN_PAGE_BYTES) * INDEX_BYTES
    ordinary_pages = tiers.dram.huge_pages is HugePages.NONE
    arena = dram + dram // 512 * processes if ordinary_pages else 0
    total = arena + index + processes * PROCESS_BYTES + movers * BUFFER_BYTES + SLACK_BYTES
    return -(-total // MI) * MI


def store_resources(tiers: Tiers) -> dict[str, dict[str, str]]:
    """The `resources` of the store's container."""
    limits = {"memory": exact(store_memory_bytes(tiers))}
    huge = _HUGE_PAGE_RESOURCE.get(tiers.dram.huge_pages)
    if huge:
        limits[huge] = exact(parse_bytes(tiers.dram.capacity_per_node))
    return {"requests": {"cpu": CPU_REQUEST} | limits, "limits": limits}
