"""What the parts of the index process share: the pools, the books of chunks, the copy movers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvtier_index import Index

from kvtier_agent.config import StoreConfig
from kvtier_agent.control import PoolGrant

from .aio import Signal, Tasks
from .arena_format import chunk_name
from .chunks import Chunks
from .fills import Fills
from .holds import Holds
from .movers import Movers
from .ports import NvmeTier
from .stats import ADOPTED, COUNTERS, Window

DEFAULT_EVICTION = "default"


class Pool:
    """One pool: its index, its holds, its figures, and what is under way in it."""

    def __init__(self, uid: str, eviction: str = DEFAULT_EVICTION) -> None:
        self.uid = uid
        self.index = Index(eviction)
        self.grant: PoolGrant | None = None
        """None: found on this node, but not (yet) served."""
        self.recovered = False
        """Whether what was found of it is in the index."""
        self.holds = Holds()
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.window = Window(asyncio.get_running_loop().time)
        """Blocks asked for, and found."""
        self.filling = 0
        """Pages that puts are storing."""
        self.progress = Signal()
        """Fires when pages arrived or were written, or room may have come. Waiters look again."""
        self.fills = Fills()
        self.notes_end: int | None = 0
        """Of the notes of what was deleted (`deletions`); None: the file says."""
        self.notes_kept = 0
        """Bytes of these that the last compaction left."""
        self.deleting = asyncio.Lock()
        """Notes of deletions are written one after the other."""

    @property
    def dram_quota(self) -> int:
        """Bytes of arena chunks that the pool may have."""
        return self.grant.dram_quota if self.grant else 0

    @property
    def nvme_quota(self) -> int:
        """Bytes on nvme that the pool may have."""
        return self.grant.nvme_quota if self.grant else 0


class Core:
    """The state of one store. Event loop thread only."""

    nvme: NvmeTier
    """Set once, before anything is served."""

    def __init__(self, config: StoreConfig, movers: Movers, chunks: Chunks, file_alignment: int) -> None:
        """`file_alignment`: of chunk files, 4,096 or the huge page."""
        self.config, self.movers, self.chunks, self.file_alignment = config, movers, chunks, file_alignment
        self.arena_path = Path(config.arena.path)
        self.client_path = Path(config.arena.client_path or config.arena.path)
        self.pools: dict[str, Pool] = {}
        self.tasks = Tasks()
        self.adopted: Counter[str] = Counter(dict.fromkeys(ADOPTED, 0))
        """What was found in the arena and on nvme: figures of `Snapshot.adoption`."""
        self.chunk_added: Callable[[str, int], None] = lambda *_: None
        """Called with pool and chunk once clients may be told of it."""
        self.chunk_gone: Callable[[str, int], None] = lambda *_: None

    def pool(self, uid: str, eviction: str = DEFAULT_EVICTION) -> Pool:
        """The pool of this UID, made if it is new."""
        found = self.pools.get(uid)
        if found is None:
            found = self.pools[uid] = Pool(uid, eviction)
        return found

    def client_chunk_path(self, pool_uid: str, chunk_id: int) -> Path:
        """Where clients' descriptors of a chunk are opened."""
        return self.client_path / pool_uid / chunk_name(chunk_id)


def unix_now() -> float:
    """Seconds since 1970, as the index takes them."""
    return time.time()
