"""The client: lookups, gets and puts against the local agent. Failure is a miss. For asyncio: `kvtier_client.aio`.

Names are loaded when they are first used: the sidecar and the agent need only `kvtier_client.protocol`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client
    from .memory import aligned_buffer, aligned_pages
    from .protocol.keys import Layout, block_hashes, root_hash
    from .protocol.messages import WHOLE_BLOCK, PageId, Reach, Tier
    from .results import Found, Held, Hold, Page, Restored, Stored

__all__ = [
    "WHOLE_BLOCK",
    "Client",
    "Found",
    "Held",
    "Hold",
    "Layout",
    "Page",
    "PageId",
    "Reach",
    "Restored",
    "Stored",
    "Tier",
    "aligned_buffer",
    "aligned_pages",
    "block_hashes",
    "root_hash",
]

_HOMES = {
    "client": ("Client",),
    "memory": ("aligned_buffer", "aligned_pages"),
    "protocol.keys": ("Layout", "block_hashes", "root_hash"),
    "protocol.messages": ("WHOLE_BLOCK", "PageId", "Reach", "Tier"),
    "results": ("Found", "Held", "Hold", "Page", "Restored", "Stored"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
