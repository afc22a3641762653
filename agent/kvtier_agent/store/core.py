"""What the parts of the index process share: the books, the pools, the movers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kvtier_agent.config import StoreConfig
from kvtier_agent.control import PoolGrant

from .aio import Signal, Tasks
from .arena import Arena, Slot
from .arena_format import chunk_name
from .holds import Holds
from .index import Index, Node, Page, PageKey, split_key
from .jobs import PageRef
from .movers import Movers
from .nvme import Nvme
from .stats import COUNTERS, HitWindow

PendingKey = tuple[bytes, bytes, PageKey]
"""Layout, hash and page of a page that a put is storing."""


class Pool:
    """One pool: its index, its holds, its figures, and what is under way in it."""

    def __init__(self, uid: str, index: Index) -> None:
        self.uid, self.index = uid, index
        self.grant: PoolGrant | None = None
        """None: found on this node, but not (yet) served."""
        self.holds = Holds(index)
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.window = HitWindow(asyncio.get_running_loop().time)
        self.pending: dict[PendingKey, asyncio.Future[None]] = {}
        """Pages that puts are storing; done when they are stored or given up."""
        self.loading: dict[Page, asyncio.Future[None]] = {}
        """Pages on their way from nvme; done when they are in DRAM or given up."""
        self.writes = 0
        """Pages that wait to be written to nvme, or are being written."""
        self.progress = Signal()
        """Fires when room may have come, or writes went on."""

    @property
    def dram_quota(self) -> int:
        """Bytes of arena chunks that the pool may have."""
        return self.grant.dram_quota if self.grant else 0

    @property
    def nvme_quota(self) -> int:
        """Bytes of segments that the pool may have."""
        return self.grant.nvme_quota if self.grant else 0


class Core:
    """The state of one store. Event loop thread only."""

    def __init__(self, config: StoreConfig, movers: Movers, arena: Arena, nvme: Nvme) -> None:
        self.config, self.movers, self.arena, self.nvme = config, movers, arena, nvme
        self.arena_path = Path(config.arena.path)
        self.client_path = Path(config.arena.client_path or config.arena.path)
        self.pools: dict[str, Pool] = {}
        self.tasks = Tasks()
        self._ticks = itertools.count(1)

    def pool(self, uid: str) -> Pool:
        """The pool of this UID, made if it is new."""
        found = self.pools.get(uid)
        if found is None:
            found = self.pools[uid] = Pool(uid, Index(self.arena.release, self._ticks))
        return found

    def client_chunk_path(self, pool_uid: str, chunk_id: int) -> Path:
        """Where clients' descriptors of a chunk are opened."""
        return self.client_path / pool_uid / chunk_name(chunk_id)


def page_ref(hash_: bytes, parent: bytes | None, key: PageKey, size: int, slot: Slot) -> PageRef:
    """What a mover needs to know of a page and its slot."""
    group, shard = split_key(key)
    return PageRef(hash_, parent or b"", group, shard, size, slot.chunk.id, slot.number, slot.generation)


def page_ref_of(page: Page, slot: Slot) -> PageRef:
    """As page_ref, of a page in the index."""
    node = page.node
    return page_ref(node.hash, node.parent.hash if node.parent else None, page.key, page.size, slot)


def chain_of(node: Node | None) -> list[Node]:
    """The nodes from the chain's root to `node`."""
    chain = []
    while node is not None:
        chain.append(node)
        node = node.parent
    chain.reverse()
    return chain


def chain_pages(node: Node | None, keys: Iterable[PageKey]) -> list[Page]:
    """The pages under `keys` of the chain that ends in `node`, from its root on."""
    wanted = frozenset(keys)
    return [page for node in chain_of(node) for page in node.pages_under(wanted)]
