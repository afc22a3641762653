"""A plain model of the index: dictionaries and lists, every answer by looking at everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtier_index import BUSY, FRESH, KNOWN, Key

Place = tuple[int, int]
Id = tuple[bytes, str, Key]
Block = tuple[bytes, str]
UNKNOWN = "?"


@dataclass(eq=False)
class Page:
    """A page, in the tree or cut and still pinned."""

    id: Id
    number: int
    filling: bool = False
    waiting: bool = False
    resident: bool = False
    writing: bool = False
    attached: bool = True
    deleted: bool = False
    limbo: bool = False
    nvme: Place | None = None
    pins: int = 0

    @property
    def present(self) -> bool:
        return self.attached and (self.resident or self.nvme is not None)

    @property
    def has_slot(self) -> bool:
        return self.filling or self.resident or self.limbo

    @property
    def trailing(self) -> bool:
        return self.id[2][2] != 0


@dataclass
class Model:
    """What the index of one pool should hold. All pages are of one size class."""

    slots: int
    parents: dict[Block, str | None]
    """Of every block that may be stored."""
    pages: dict[Id, Page] = field(default_factory=dict)
    """Those in the tree."""
    pinned: list[Page] = field(default_factory=list)
    """Those cut while they were pinned."""
    lru: list[Page] = field(default_factory=list)
    """Resident ones, coldest first."""
    nodes: dict[Block, str | None] = field(default_factory=dict)
    """Of every block that has pages, or has a block below it, the block that it hangs on: None for a root, UNKNOWN."""
    births: dict[Block, int] = field(default_factory=dict)
    """When nodes were linked to their parents, for the order of children."""
    clock: int = 0
    full_seen: set[bytes] = field(default_factory=set)
    """Layouts that have, or had since they were empty, full pages."""

    @property
    def used(self) -> int:
        return sum(page.has_slot for page in [*self.pages.values(), *self.pinned])

    def page(self, layout: bytes, name: str, key: Key) -> Page | None:
        return self.pages.get((layout, name, key))

    def block(self, layout: bytes, name: str) -> list[Page]:
        return [page for (of, block, _), page in self.pages.items() if (of, block) == (layout, name)]

    def above(self, page: Page) -> Page | None:
        layout, name, key = page.id
        parent = self.parents[layout, name]
        return None if parent is None or page.trailing else self.pages.get((layout, parent, key))

    def below(self, page: Page) -> list[Page]:
        """The same page of the children, those that were made first, first."""
        layout, name, key = page.id
        children = [child for (of, child), parent in self.parents.items() if (of, parent) == (layout, name)]
        found = [it for child in children if not page.trailing and (it := self.page(layout, child, key))]
        return sorted(found, key=lambda it: self.births[it.id[:2]])

    def chain(self, layout: bytes, name: str) -> list[str]:
        names = [name]
        while (parent := self.parents[layout, names[-1]]) is not None:
            names.append(parent)
        return names[::-1]

    # Lookups

    def leading(self, layout: bytes, names: Sequence[str], keys: Sequence[Key], resident: bool) -> int:
        """The largest count of leading blocks whose wanted pages are there; `names` is part of a true chain."""

        def has(name: str, key: Key) -> bool:
            page = self.page(layout, name, key)
            return page is not None and page.present and (page.resident or not resident)

        def whole(blocks: int) -> bool:
            return all(
                has(name, key)
                for key in keys
                for at, name in enumerate(names[:blocks])
                if key[2] == 0 or at + key[2] >= blocks
            )

        full = [key for key in keys if key[2] == 0]
        top = next((at for at, name in enumerate(names) if not all(has(name, key) for key in full)), len(names))
        return next(blocks for blocks in range(top, -1, -1) if whole(blocks))

    # Changes

    def warm(self, page: Page) -> None:
        if page in self.lru:
            self.lru.remove(page)
            self.lru.append(page)

    def free(self, page: Page) -> None:
        page.filling = page.waiting = page.resident = page.limbo = False
        if page in self.lru:
            self.lru.remove(page)

    def unpin(self, page: Page) -> None:
        page.pins -= 1
        if page.pins == 0 and not page.attached:
            self.free(page)
            self.pinned.remove(page)

    def detach(self, page: Page) -> None:
        del self.pages[page.id]
        page.attached = False
        page.nvme = None
        page.pins += 1
        self.pinned.append(page)
        if page.waiting:
            self.filled_in_vain(page)
        self.unpin(page)
        layout, name, _ = page.id
        if not page.trailing and all(other.trailing for other in self.block(layout, name)):
            for other in self.block(layout, name):
                self.detach(other)
        if (layout, name) in self.nodes:
            self.settle(layout, name)

    def filled_in_vain(self, page: Page) -> None:
        if page.deleted:
            page.filling = page.waiting = False
            page.limbo = True
        else:
            self.unpin(page)

    def cut(self, page: Page) -> None:
        for below in self.below(page):
            self.cut(below)
        if page.attached:
            self.detach(page)

    def appear(self, page: Page) -> None:
        """The page is resident, and so are those that waited for it."""
        stack = [page]
        while stack:
            page = stack.pop()
            page.filling = page.waiting = False
            page.resident = True
            above = self.above(page)
            self.lru.insert(self.lru.index(above) if above in self.lru else len(self.lru), page)
            self.unpin(page)
            self.demote(page)
            stack += [below for below in self.below(page)[::-1] if below.waiting]

    def demote(self, page: Page) -> None:
        layout, name, key = page.id
        for _ in range(key[2]):
            parent = self.nodes[layout, name]
            if parent is None or parent == UNKNOWN or len(self.children(layout, parent)) != 1:
                return
            name = parent
        old = self.page(layout, name, key) if key[2] else None
        if old in self.lru and old is not None:
            self.lru.remove(old)
            self.lru.insert(0, old)

    def children(self, layout: bytes, name: str) -> list[str]:
        return [child for (of, child), parent in self.nodes.items() if (of, parent) == (layout, name)]

    def settle(self, layout: bytes, name: str | None) -> None:
        """Blocks without pages and children are forgotten, from this one on up."""
        while name is not None and name != UNKNOWN and not self.block(layout, name) and not self.children(layout, name):
            name = self.nodes.pop((layout, name))

    def victim(self, kept: Callable[[Page], bool]) -> Page | None:
        for page in list(self.lru):
            if page.pins == 0 and not kept(page) and (page.nvme is not None or not self.below(page)):
                return page
            self.warm(page)
        return None

    def evict(self, page: Page) -> None:
        if page.nvme is None:
            self.cut(page)
        else:
            self.free(page)

    def use(self, pages: Sequence[Page]) -> None:
        for page in reversed(pages):
            self.warm(page)

    # Puts

    def all_trailing(self, layout: bytes) -> bool:
        if not any(of == layout for of, _ in self.nodes):
            self.full_seen.discard(layout)
        return layout not in self.full_seen

    def state(self, page: Page) -> int:
        return KNOWN if page.present else BUSY

    def check_put(self, layout: bytes, names: Sequence[str], keys: Sequence[Key]) -> list[int] | None:
        """The states of a put's pages; None: it is refused."""
        states: list[int] = []
        only_trailing = self.all_trailing(layout) and all(key[2] for key in keys)
        for at, name in enumerate(names):
            parent = self.parents[layout, name]
            for key in keys:
                page = self.page(layout, name, key)
                above = self.page(layout, parent, key) if parent is not None else None
                if page is not None:
                    states.append(self.state(page))
                elif parent is None:
                    states.append(FRESH)
                elif key[2]:
                    if not (only_trailing or at or (layout, parent) in self.nodes):
                        return None
                    states.append(FRESH)
                elif at:
                    states.append(BUSY if states[len(states) - len(keys)] == BUSY else FRESH)
                elif above is None:
                    return None
                else:
                    states.append(FRESH if above.present else BUSY)
        return states

    def reserve(
        self, layout: bytes, names: Sequence[str], keys: Sequence[Key], start: int
    ) -> tuple[list[tuple[int, Page]], int, bool] | None:
        """What a put takes from position `start` on; None: it is refused."""
        taken: list[tuple[int, Page]] = []
        kept: set[int] | None = None
        places = [(name, key) for name in names for key in keys]
        for at, (name, key) in enumerate(places):
            if at < start:
                continue
            evicted = False
            while True:
                page = self.page(layout, name, key)
                if page is not None and page.present:
                    if kept is not None:
                        kept |= {id(other) for other in self.block(layout, name)}
                    break
                if page is not None:
                    return taken, at, True
                if not self.hangs(layout, name, key):
                    return (taken, at, False) if taken else None
                if self.used < self.slots:
                    taken.append((at, self.take(layout, name, key)))
                    break
                if kept is None:
                    kept = {id(page) for page in self.line(layout, name)}
                victim = None if evicted else self.victim(lambda page: id(page) in kept and page.nvme is None)  # noqa: B023
                if victim is None:
                    return taken, at, False
                self.evict(victim)
                evicted = True
        return taken, len(places), False

    def line(self, layout: bytes, name: str) -> list[Page]:
        """The pages of the block and of those before it, as far as they are known."""
        pages: list[Page] = []
        for start in (name, self.parents[layout, name]):
            at = start
            while at is not None and at != UNKNOWN and (layout, at) in self.nodes:
                pages += self.block(layout, at)
                at = self.nodes[layout, at]
        return pages

    def hangs(self, layout: bytes, name: str, key: Key) -> bool:
        parent = self.parents[layout, name]
        if parent is None:
            return True
        if key[2] == 0:
            return self.page(layout, parent, key) is not None
        return self.all_trailing(layout) or (layout, parent) in self.nodes

    def take(self, layout: bytes, name: str, key: Key) -> Page:
        if not key[2]:
            self.full_seen.add(layout)
        page = Page((layout, name, key), -1, filling=True, pins=1)
        above = self.above(page)
        if above is not None and above.present:
            while above is not None:
                self.warm(above)
                above = self.above(above)
        if self.nodes.get((layout, name), UNKNOWN) == UNKNOWN:
            self.clock += 1
            self.births[layout, name] = self.clock
            parent = self.nodes[layout, name] = self.parents[layout, name]
            if parent is not None:
                self.nodes.setdefault((layout, parent), UNKNOWN)
        self.pages[page.id] = page
        return page

    def commit(self, pages: Sequence[Page]) -> int:
        resident = 0
        for page in pages:
            if not page.attached:
                self.filled_in_vain(page)
                continue
            resident += 1
            above = self.above(page)
            if above is not None and not above.present:
                page.waiting = True
            else:
                self.appear(page)
        return resident

    def abort(self, pages: Sequence[Page]) -> None:
        for page in pages:
            if page.attached:
                self.cut(page)
                self.unpin(page)
            else:
                self.filled_in_vain(page)

    def delete(self, layout: bytes, name: str) -> set[str]:
        """Names of the blocks that had pages."""
        names = [name]
        for above in names:
            names += self.children(layout, above)
        pages = [page for below in reversed(names) for page in self.block(layout, below)]
        for page in pages:
            page.deleted = True
            page.limbo = page.resident
            page.pins += page.resident
        for page in pages:
            if page.attached:
                self.detach(page)
        return {page.id[1] for page in pages}
