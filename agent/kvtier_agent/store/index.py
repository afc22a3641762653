"""The index of one pool: the prefix tree of its blocks, and where their pages lie.

Invariant: a page (group, shard) of a block is present only while the same page of the block's parent
is. So the blocks of a chain that are whole form a prefix of it, and bisection finds its end.

Pure data structure, for one thread. Freed slots are handed to `on_free`; nothing here does I/O.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NewType

from kvtier_client.protocol.messages import PageId

from .arena import Slot
from .arena_format import PAGE, round_up
from .nvme import Location

PageKey = NewType("PageKey", int)
"""Group and shard in one number: dictionaries of the tree are hot, and a number hashes fastest."""

_SHARD_BITS: Final = 16


def page_key(page: PageId) -> PageKey:
    """The key of a page within its block."""
    return join_key(page.group, page.shard)


def join_key(group: int, shard: int) -> PageKey:
    """The key of the page of this group and shard."""
    return PageKey(group << _SHARD_BITS | shard)


def split_key(key: PageKey) -> tuple[int, int]:
    """Group and shard."""
    return key >> _SHARD_BITS, key & (1 << _SHARD_BITS) - 1


class AbsentParent(Exception):
    """The block's parent has no such page, so that this one could never be found."""


class Node:
    """A block of one layout."""

    __slots__ = ("children", "hash", "layout", "pages", "parent")

    def __init__(self, layout: bytes, hash_: bytes, parent: Node | None) -> None:
        self.layout, self.hash, self.parent = layout, hash_, parent
        self.children: set[Node] = set()
        self.pages: dict[PageKey, Page] = {}

    def pages_under(self, keys: frozenset[PageKey]) -> list[Page]:
        """The block's pages among `keys`. Steps as many as the fewer of the two: a client chooses both numbers."""
        if len(keys) < len(self.pages):
            return [self.pages[key] for key in keys if key in self.pages]
        return [page for key, page in self.pages.items() if key in keys]


class Page:
    """A page that is present in at least one tier, or that was cut and is still pinned."""

    __slots__ = ("attached", "key", "last_use", "node", "nvme", "pins", "size", "slot", "writing")

    def __init__(self, node: Node, key: PageKey, size: int) -> None:
        self.node, self.key, self.size = node, key, size
        self.slot: Slot | None = None
        self.nvme: Location | None = None
        self.last_use = 0
        self.pins = 0
        """Holds and jobs that need the slot, or the page, to stay."""
        self.writing = False
        """Waits to be written to nvme, or is being written. Pinned meanwhile."""
        self.attached = True
        """Still in the tree."""

    @property
    def slot_bytes(self) -> int:
        """The size class of the page's slot."""
        return round_up(self.size, PAGE)


class Index:
    """The blocks of one pool, all layouts."""

    def __init__(self, on_free: Callable[[Slot], None], ticks: Iterator[int]) -> None:
        """`ticks` orders uses over all pools."""
        self._on_free, self._ticks = on_free, ticks
        self._layouts: defaultdict[bytes, dict[bytes, Node]] = defaultdict(dict)
        self._lru: defaultdict[int, OrderedDict[Page, None]] = defaultdict(OrderedDict)
        """By size class, pages in DRAM, coldest first; ancestors stand behind their descendants."""
        self._tick = next(ticks)
        self.blocks = 0
        self.dram_pages = self.dram_bytes = 0
        self.nvme_pages = self.nvme_bytes = 0

    def node(self, layout: bytes, hash_: bytes) -> Node | None:
        """The block, if any of its pages is present."""
        nodes = self._layouts.get(layout)
        return nodes.get(hash_) if nodes else None

    def nodes(self) -> Iterator[Node]:
        """Every block."""
        return (node for nodes in self._layouts.values() for node in nodes.values())

    def find(self, layout: bytes, hashes: Sequence[bytes], keys: Iterable[PageKey]) -> list[Node]:
        """The leading blocks of `hashes` that are whole, `keys` being the pages that make them so."""
        nodes = self._layouts.get(layout)
        wanted = frozenset(keys)
        if not nodes or not hashes or not wanted:
            return []
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            node = nodes.get(hashes[middle])
            if node is not None and wanted <= node.pages.keys():
                low = middle + 1
            else:
                high = middle
        return _walk_back(nodes, hashes[:low], wanted) if low else []

    def add(self, layout: bytes, hash_: bytes, parent_hash: bytes | None, key: PageKey, size: int) -> Page:
        """The page under this key, made if it is not there; the caller places it at once.

        Raises AbsentParent.
        """
        nodes = self._layouts[layout]
        parent = None
        if parent_hash is not None:
            parent = nodes.get(parent_hash)
            if parent is None or key not in parent.pages:
                raise AbsentParent
        node = nodes.get(hash_)
        if node is None:
            node = nodes[hash_] = Node(layout, hash_, parent)
            self.blocks += 1
            if parent is not None:
                parent.children.add(node)
        elif node.parent is not parent:
            raise AbsentParent
        page = node.pages.get(key)
        if page is None:
            page = node.pages[key] = Page(node, key, size)
        return page

    def set_slot(self, page: Page, slot: Slot) -> None:
        """The page lies committed in `slot`, which was taken for it."""
        page.slot = slot
        slot.chunk.pages[slot.number] = page
        self._lru[page.slot_bytes][page] = None
        page.last_use = slot.chunk.last_use = self._tick
        self.dram_pages += 1
        self.dram_bytes += page.slot_bytes

    def set_nvme(self, page: Page, location: Location) -> None:
        """The page lies on nvme at `location`, in place of where it lay there before."""
        self._leave_segment(page)
        page.nvme = location
        location.segment.pages.add(page)
        location.segment.last_use = max(location.segment.last_use, self._tick)
        self.nvme_pages += 1
        self.nvme_bytes += page.slot_bytes

    def drop_slot(self, page: Page) -> None:
        """The page leaves DRAM, and the tree with all below it if it lies nowhere else. It is not pinned."""
        self._free_slot(page)
        if page.nvme is None and page.attached:
            self.cut(page)

    def drop_nvme(self, page: Page) -> None:
        """The page leaves nvme, and the tree with all below it if it lies nowhere else."""
        self._leave_segment(page)
        if page.slot is None and page.attached:
            self.cut(page)

    def cut(self, page: Page) -> int:
        """Take the page and the same page of every descendant out of the tree; returns how many.

        Slots of pinned pages stay until the last pin goes.
        """
        key = page.key
        below = [page.node]
        for node in below:
            below += [child for child in node.children if key in child.pages]
        for node in reversed(below):
            gone = node.pages.pop(key)
            gone.attached = False
            self._leave_segment(gone)
            if gone.pins == 0:
                self._free_slot(gone)
            if not node.pages:
                self._remove(node)
        return len(below)

    def pin(self, page: Page) -> None:
        """Keep the page's slot until `unpin`."""
        page.pins += 1

    def unpin(self, page: Page) -> None:
        """Undo one `pin`."""
        page.pins -= 1
        if page.pins == 0 and not page.attached:
            self._free_slot(page)

    def touch(self, node: Node | None, keys: Iterable[PageKey]) -> None:
        """Mark a chain as used, from its last block to its root, so that ancestors are the warmer ones."""
        wanted = frozenset(keys)
        self._tick = next(self._ticks)
        while node is not None:
            for page in node.pages_under(wanted):
                self._warm(page)
            node = node.parent

    def touch_pages(self, pages: Iterable[Page]) -> None:
        """Mark pages as used in the order given, which must have every ancestor behind its descendants."""
        for page in pages:
            self._tick = next(self._ticks)
            self._warm(page)

    def evictable(self, slot_bytes: int) -> Page | None:
        """The coldest page of this size class that may leave DRAM; None: there is none.

        A page that lies nowhere else and has descendants may not: they are pinned, or they would stand before it.
        """
        lru = self._lru[slot_bytes]
        for _ in range(len(lru)):
            page = next(iter(lru))
            if page.pins == 0 and (page.nvme is not None or not _has_children(page)):
                return page
            lru.move_to_end(page)  # in use, so that the next search need not pass it again
        return None

    def _warm(self, page: Page) -> None:
        page.last_use = self._tick
        if page.slot is not None:
            self._lru[page.slot_bytes].move_to_end(page)
            page.slot.chunk.last_use = self._tick
        if page.nvme is not None:
            page.nvme.segment.last_use = self._tick

    def _free_slot(self, page: Page) -> None:
        slot, page.slot = page.slot, None
        if slot is not None:
            del self._lru[page.slot_bytes][page]
            self.dram_pages -= 1
            self.dram_bytes -= page.slot_bytes
            self._on_free(slot)

    def _leave_segment(self, page: Page) -> None:
        location, page.nvme = page.nvme, None
        if location is not None:
            location.segment.pages.discard(page)
            self.nvme_pages -= 1
            self.nvme_bytes -= page.slot_bytes

    def _remove(self, node: Node) -> None:
        self.blocks -= 1
        del self._layouts[node.layout][node.hash]
        if not self._layouts[node.layout]:
            del self._layouts[node.layout]
        if node.parent is not None:
            node.parent.children.discard(node)


def _has_children(page: Page) -> bool:
    return any(page.key in child.pages for child in page.node.children)


def _walk_back(nodes: dict[bytes, Node], hashes: Sequence[bytes], wanted: frozenset[PageKey]) -> list[Node]:
    """The nodes of `hashes`, whose last one is present, if they are a chain; else as many leading ones as are."""
    found: list[Node] = []
    node: Node | None = nodes[hashes[-1]]
    for hash_ in reversed(hashes):
        if node is None or node.hash != hash_:
            return _walk_forth(nodes, hashes, wanted)
        found.append(node)
        node = node.parent
    found.reverse()
    return found


def _walk_forth(nodes: dict[bytes, Node], hashes: Sequence[bytes], wanted: frozenset[PageKey]) -> list[Node]:
    """The leading nodes of a list that is no chain throughout, which no honest client sends."""
    found: list[Node] = []
    for hash_ in hashes:
        node = nodes.get(hash_)
        if node is None or not wanted <= node.pages.keys() or (found and node.parent is not found[-1]):
            break
        found.append(node)
    return found
