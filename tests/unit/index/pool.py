"""An index of one pool with a chunk or two, and blocks named by single letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtier_agent.store.refs import Ref, decode_refs
from kvtier_index import Index, Key

LAYOUT = b"L" * 32
KEY: Key = (0, 0, 0)
OTHER_KEY: Key = (1, 3, 0)
SLOT = 4096
HEADER_AT = 4096 + 8
HEADER_BYTES = 512
PAYLOAD_AT = 65536
FOREVER = 1 << 40


def hash_of(name: str) -> bytes:
    """The hash of the block of this name."""
    return name.encode().ljust(32, b".")


def name_of(hash_: bytes) -> str:
    """The name of the block of this hash."""
    return hash_.rstrip(b".").decode()


def digest_of(hash_: bytes, key: Key) -> bytes:
    """A payload digest that only this page has."""
    return hash_[:10] + key[0].to_bytes(4, "little") + key[1].to_bytes(2, "little")


class Pool:
    """The index under test."""

    def __init__(self, slots: int = 32, policy: str = "lru") -> None:
        self.index = Index(policy)
        self.now = 1000.0
        if slots:
            self.add_chunk(1, slots)

    def add_chunk(self, number: int, slots: int, slot_bytes: int = SLOT, generations: bytes = b"") -> None:
        self.index.add_chunk(number, slot_bytes, slots, PAYLOAD_AT, HEADER_AT, HEADER_BYTES, generations)

    def given(
        self, names: Iterable[str], keys: Sequence[Key] = (KEY,), size: int = SLOT
    ) -> list[tuple[bytes, int, int, int, int]]:
        """The pages of a put of these blocks."""
        return [(hash_of(name), *key, size) for name in names for key in keys]

    def reserve(
        self,
        names: str,
        parent: str | None = None,
        keys: Sequence[Key] = (KEY,),
        size: int = SLOT,
        layout: bytes = LAYOUT,
    ) -> list[int]:
        """Pages that are filling now, of a put of these blocks."""
        pages = self.given(names, keys, size)
        above = None if parent is None else hash_of(parent)
        taken, _, _ = self.index.reserve(layout, above, pages, 0, len(pages), self.now, FOREVER)
        return [page for _, page in taken]

    def commit(self, pages: Sequence[int]) -> int:
        digests = [digest_of(ref.hash, (ref.group, ref.shard, ref.trailing)) for ref in self.refs(pages)]
        return self.index.commit(pages, b"".join(digests))

    def store(
        self,
        names: str,
        parent: str | None = None,
        keys: Sequence[Key] = (KEY,),
        size: int = SLOT,
        layout: bytes = LAYOUT,
        segment: int | None = None,
        at: int = 0,
    ) -> list[int]:
        """Pages of a put that ended, on nvme too if a segment is named, from byte `at` of it on."""
        pages = self.reserve(names, parent, keys, size, layout)
        self.commit(pages)
        if segment is not None:
            self.write(pages, segment, at)
        return pages

    def write(self, pages: Sequence[int], segment: int, at: int = 0) -> None:
        """Have these dirty pages written one behind the other."""
        assert self.index.dirty(pages) == list(pages)
        self.index.written(pages, segment, [at + SLOT * number for number in range(len(pages))])

    def evict(self, count: int) -> list[str]:
        """Names of the blocks that leave DRAM to make room for so many unrelated pages, which are given up again."""
        before = self.in_dram()
        free = self.index.free_slots(SLOT)
        names = [f"!{number}" for number in range(free + count)]
        made = []
        for name in names:
            pages = self.given([name])
            taken, _, _ = self.index.reserve(b"evict" * 6 + b"LL", None, pages, 0, 1, self.now, FOREVER)
            made += [page for _, page in taken]
        gone = [name for name in before if name not in self.in_dram()]
        self.index.abort(made)
        return gone

    def find(self, names: str, keys: Sequence[Key] = (KEY,), layout: bytes = LAYOUT) -> tuple[int, int]:
        return self.index.find(layout, [hash_of(name) for name in names], keys)

    def found(self, names: str, keys: Sequence[Key] = (KEY,)) -> str:
        """The leading whole blocks."""
        return names[: self.find(names, keys)[0]]

    def page(self, name: str, key: Key = KEY, layout: bytes = LAYOUT) -> int | None:
        """The number of a present page."""
        pages = self.index.chain_of(layout, hash_of(name), [key[:2]])
        if not pages or self.refs(pages[-1:])[0].hash != hash_of(name):
            return None
        return pages[-1]

    def in_dram(self, key: Key = KEY, layout: bytes = LAYOUT) -> list[str]:
        """Names of one letter whose page is resident."""
        names = [chr(code) for code in range(33, 127)]
        return [name for name in names if self.is_resident(self.page(name, key, layout))]

    def is_resident(self, page: int | None) -> bool:
        return page is not None and self.refs([page])[0].chunk != 0

    def refs(self, pages: Sequence[int]) -> list[Ref]:
        return decode_refs(self.index.refs(pages))
