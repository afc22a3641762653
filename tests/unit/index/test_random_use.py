"""The index under random use agrees with a plain model, after every step."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from kvtier_agent.store.refs import Ref
from kvtier_index import Hold, Key, Refused

from tests.unit.index.model import Id, Model, Page
from tests.unit.index.pool import FOREVER, SLOT, Pool, hash_of

SLOTS = 24
SEGMENTS = 4
FULL = [(0, 0, 0), (1, 0, 0)]
KEYS: dict[bytes, list[Key]] = {
    b"F" * 32: [*FULL],
    b"M" * 32: [*FULL[:1], (7, 0, 2)],
    b"T" * 32: [(7, 0, 3), (8, 0, 1)],
}


def some_tree(dice: random.Random, layout: bytes, blocks: int) -> dict[tuple[bytes, str], str | None]:
    """Parents of blocks of a few long chains that part now and then."""
    parents: dict[tuple[bytes, str], str | None] = {}
    names: list[str] = []
    for number in range(blocks):
        parent = None if not names or dice.random() < 0.1 else names[-1] if dice.random() < 0.7 else dice.choice(names)
        names.append(f"{number}")
        parents[layout, names[-1]] = parent
    return parents


class Run:
    """One random run: every step is done to both."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.pool = Pool(SLOTS)
        self.index = self.pool.index
        parents = {}
        for layout in KEYS:
            parents.update(some_tree(self.dice, layout, 14))
        self.model = Model(SLOTS, parents)
        self.fills: list[Page] = []
        self.reads: list[Page] = []
        self.writes: list[Page] = []
        self.holds: list[tuple[Hold, list[Page]]] = []
        self.offset = 0

    def step(self) -> None:
        steps = [
            self.put, self.put, self.put, self.put, self.commit, self.commit, self.commit, self.abort, self.hold,
            self.hold, self.release, self.release, self.read, self.read, self.finish_read, self.finish_read,
            self.write, self.write, self.written, self.written, self.drop_segment, self.move, self.delete,
            self.free_deleted, self.free_deleted, self.damage, self.touch,
        ]  # fmt: skip
        self.dice.choice(steps)()

    # Choices

    def some_chain(self) -> tuple[bytes, list[str]]:
        """The end of a true chain, and the layout."""
        layout, name = self.dice.choice(list(self.model.parents))
        chain = self.model.chain(layout, name)
        return layout, chain[self.dice.randrange(len(chain)) if self.dice.random() < 0.3 else 0 :]

    def some_keys(self, layout: bytes) -> list[Key]:
        keys = KEYS[layout]
        return self.dice.sample(keys, self.dice.randint(1, len(keys)))

    def some_of(self, pages: list[Page]) -> list[Page]:
        """Taken out of the list, mostly in order."""
        taken = [page for page in pages if self.dice.random() < 0.6]
        if self.dice.random() < 0.2:
            self.dice.shuffle(taken)
        pages[:] = [page for page in pages if page not in taken]
        return taken

    def some_present(self, wanted: str) -> list[Page]:
        return [page for page in self.model.pages.values() if page.present and getattr(page, wanted)]

    # Steps

    def put(self) -> None:
        layout, names = self.some_chain()
        keys = self.some_keys(layout)
        parent = self.model.parents[layout, names[0]]
        above = None if parent is None else hash_of(parent)
        pages = [(hash_of(name), *key, SLOT) for name in names for key in keys]
        expected = self.model.check_put(layout, names, keys)
        if expected is None:
            with pytest.raises(Refused, match="parent_absent"):
                self.index.check_put(layout, above, pages)
            return
        assert self.index.check_put(layout, above, pages) == expected
        start = self.dice.randrange(len(pages)) if self.dice.random() < 0.1 else 0
        planned = self.model.reserve(layout, names, keys, start)
        if planned is None:
            with pytest.raises(Refused, match="parent_absent"):
                self.index.reserve(layout, above, pages, start, len(pages), 1.0, FOREVER)
            return
        taken, stopped, busy = self.index.reserve(layout, above, pages, start, len(pages), 1.0, FOREVER)
        assert ([at for at, _ in taken], stopped, busy) == ([at for at, _ in planned[0]], *planned[1:])
        for (_, number), (_, page) in zip(taken, planned[0], strict=True):
            page.number = number
            self.fills.append(page)

    def commit(self) -> None:
        pages = [page for page in self.some_of(self.fills) if not page.waiting]
        digests = b"".join(self.digest(page.id) for page in pages)
        assert self.index.commit([page.number for page in pages], digests) == self.model.commit(pages)

    def digest(self, id_: Id) -> bytes:
        return f"{id_[0][:1].decode()}{id_[1]}-{id_[2][0]}".encode().ljust(16, b".")

    def abort(self) -> None:
        pages = self.some_of(self.fills)
        self.index.abort([page.number for page in pages])
        self.model.abort(pages)

    def hold(self) -> None:
        layout, names = self.some_chain()
        keys = self.some_keys(layout)
        held = self.index.hold(layout, [hash_of(name) for name in names], keys, 1.0)
        blocks = self.model.leading(layout, names, keys, resident=False)
        assert held.blocks == blocks
        wanted = [
            self.model.pages[layout, name, key]
            for at, name in enumerate(names[:blocks])
            for key in keys
            if key[2] == 0 or at + key[2] >= blocks
        ]
        assert held.pages == [page.number for page in wanted]
        for page in wanted:
            page.pins += 1
        self.model.use(wanted)
        self.holds.append((held, wanted))
        missing = [page.number for page in wanted if not page.resident and not page.filling]
        assert held.missing() == missing

    def release(self) -> None:
        if self.holds:
            held, pages = self.holds.pop(self.dice.randrange(len(self.holds)))
            held.release()
            for page in pages:
                self.model.unpin(page)

    def read(self) -> None:
        below = [page for page in self.some_present("nvme") if not page.has_slot]
        pages = self.dice.sample(below, min(len(below), self.dice.randint(0, 6)))
        expected = []
        for page in pages:
            if page.nvme is None:
                continue
            page.pins += 1
            if self.model.used == SLOTS:
                victim = self.model.victim(lambda _: False)
                if victim is None:
                    page.pins -= 1
                    break
                self.model.evict(victim)
            if page.nvme is None:
                self.model.unpin(page)
                continue
            page.filling = True
            expected.append(page)
        plan = self.index.read_plan([page.number for page in pages], 3 * SLOT, 2, SLOT, 1.0)
        assert sorted(number for read in plan for number in read[3]) == sorted(page.number for page in expected)
        for segment, offset, length, numbers in plan:
            # A page may have gone with what was evicted for a later one.
            places = [place for number in numbers if (place := self.index.place_of(number))]
            assert all(place[0] == segment and offset <= place[1] < offset + length for place in places)
        self.reads += expected

    def finish_read(self) -> None:
        pages = self.some_of(self.reads)
        fates = [self.dice.choice("ggggbf") for _ in pages]
        good, bad, failed = ([page for page, fate in zip(pages, fates, strict=True) if fate == kind] for kind in "gbf")
        self.index.finish_read(*([page.number for page in some] for some in (good, bad, failed)))
        for page in good:
            if page.deleted:
                self.model.filled_in_vain(page)
                continue
            page.filling, page.resident = False, True
            above = self.model.above(page) if page.attached else None
            lru = self.model.lru
            lru.insert(lru.index(above) if above in lru else len(lru), page)
            self.model.unpin(page)
        for page in bad + failed:
            page.filling = False
        for page in bad:
            if page.attached:
                self.model.cut(page)
        for page in bad + failed:
            self.model.unpin(page)

    def write(self) -> None:
        pages = self.dice.sample(self.some_present("resident"), min(4, len(self.some_present("resident"))))
        dirty = [page for page in pages if page.nvme is None and not page.writing]
        assert self.index.dirty([page.number for page in pages]) == [page.number for page in dirty]
        for page in dirty:
            page.writing = True
            page.pins += 1
        self.writes += dirty

    def written(self) -> None:
        pages = self.some_of(self.writes)
        numbers = [page.number for page in pages]
        segment = self.dice.randrange(SEGMENTS)
        good = self.dice.random() < 0.8
        offsets = [self.next_offset() for _ in pages]
        if good:
            self.index.written(numbers, segment, offsets)
        else:
            self.index.not_written(numbers)
        for page, offset in zip(pages, offsets, strict=True):
            page.writing = False
            if good and page.attached:
                page.nvme = (segment, offset)
            self.model.unpin(page)

    def next_offset(self) -> int:
        self.offset += SLOT * self.dice.randint(1, 2)
        return self.offset

    def drop_segment(self) -> None:
        if self.dice.random() < 0.7:
            return
        segment = self.dice.randrange(SEGMENTS)
        while self.index.drop_segment(segment, self.dice.randint(1, 3)):
            self.index.check()
        lost = [page for page in self.some_present("nvme") if page.nvme and page.nvme[0] == segment]
        for page in lost:
            page.nvme = None
        for page in lost:
            if page.attached and not page.resident:
                self.model.cut(page)

    def move(self) -> None:
        for page in self.some_present("nvme")[:3]:
            assert page.nvme is not None
            place = (self.dice.randrange(SEGMENTS), self.next_offset())
            assert not self.index.moved(page.number, page.nvme[0], page.nvme[1] + SLOT, *place)
            assert self.index.moved(page.number, *page.nvme, *place)
            page.nvme = place

    def delete(self) -> None:
        if self.dice.random() < 0.7:
            return
        layout, name = self.dice.choice(list(self.model.parents))
        hashes, slots = self.index.delete(layout, hash_of(name))
        before = self.limbo()
        gone = self.model.delete(layout, name)
        assert {hashes[at : at + 32] for at in range(0, len(hashes), 32)} == {hash_of(name) for name in gone}
        assert len(slots) <= len(self.limbo()) - len(before)

    def limbo(self) -> list[Page]:
        return [page for page in self.model.pinned if page.limbo and page.deleted]

    def free_deleted(self) -> None:
        self.index.take_late()
        self.index.free_deleted([(1, slot) for slot in range(SLOTS)])
        for page in self.limbo():
            page.deleted = False
            self.model.unpin(page)

    def damage(self) -> None:
        if self.dice.random() < 0.7:
            return
        resident = self.some_present("resident")
        if not resident:
            return
        page = self.dice.choice(resident)
        assert self.index.drop_slots(1, [self.refs([page])[0].slot]) == 1
        if page.pins or page.nvme is None:
            self.model.cut(page)
        else:
            self.model.free(page)

    def touch(self) -> None:
        layout, names = self.some_chain()
        self.index.touch(layout, [hash_of(name) for name in names], 2.0)
        present = next(
            (at for at, name in enumerate(names) if not any(page.present for page in self.model.block(layout, name))),
            len(names),
        )
        for name in reversed(names[:present]):
            # Later pages of a block stand before earlier ones in its list.
            for page in self.model.block(layout, name):
                self.model.warm(page)

    # Comparison

    def refs(self, pages: Sequence[Page]) -> list[Ref]:
        return self.pool.refs([page.number for page in pages])

    def check(self) -> None:
        self.index.check()
        model = self.model
        everything = [*model.pages.values(), *model.pinned]
        assert self.index.slots_in_use == model.used
        assert self.index.blocks == len({page.id[:2] for page in model.pages.values() if page.present})
        assert self.index.nvme_pages == sum(page.nvme is not None for page in everything)
        assert self.index.dram_pages == sum(page.resident for page in everything)
        for page, ref in zip(everything, self.refs(everything), strict=True):
            assert (ref.hash, (ref.group, ref.shard, ref.trailing)) == (hash_of(page.id[1]), page.id[2])
            assert (ref.chunk == 1) == page.has_slot, page
            place = self.index.place_of(page.number)
            assert (place and place[:2]) == page.nvme
            if page.present:
                assert ref.digest == self.digest(page.id)
        for _ in range(4):
            layout, names = self.some_chain()
            keys = self.some_keys(layout)
            asked = [hash_of(name) for name in names]
            expected = tuple(model.leading(layout, names, keys, resident=which) for which in (False, True))
            assert self.index.find(layout, asked, keys) == expected


@pytest.mark.parametrize("seed", range(12))
def test_index_under_random_use_agrees_with_a_plain_model(seed: int) -> None:
    run = Run(seed)
    for _ in range(500):
        run.step()
        run.check()


class Load:
    """Random use of an index whose choice of victims is its own; each step leaves it consistent."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.pool = Pool(SLOTS, "default")
        self.pool.add_chunk(2, SLOTS // 2, 2 * SLOT)
        self.index = self.pool.index
        self.parents: dict[tuple[bytes, str], str | None] = {}
        for layout in KEYS:
            self.parents.update(some_tree(self.dice, layout, 40))
        self.fills: list[int] = []
        self.reads: list[int] = []
        self.holds: list[Hold] = []
        self.offset = 0

    def chain(self) -> tuple[bytes, list[bytes]]:
        layout, name = self.dice.choice(list(self.parents))
        names = [name]
        while (parent := self.parents[layout, names[-1]]) is not None:
            names.append(parent)
        return layout, [hash_of(name) for name in reversed(names)]

    def step(self) -> None:
        self.dice.choice([self.serve, self.serve, self.serve, self.finish, self.release, self.read, self.lose])()

    def serve(self) -> None:
        """What an engine asks for: a get, and a put of the rest."""
        layout, hashes = self.chain()
        keys = KEYS[layout]
        held = self.index.hold(layout, hashes, keys, self.pool.now)
        self.holds.append(held)
        known = held.blocks
        sizes = [SLOT if key[0] else 2 * SLOT for key in keys]
        pages = [(hash_, *key, size) for hash_ in hashes[known:] for key, size in zip(keys, sizes, strict=True)]
        try:
            taken, _, _ = self.index.reserve(
                layout, hashes[known - 1] if known else None, pages, 0, len(pages), self.pool.now, FOREVER
            )
        except Refused:
            return
        self.fills += [page for _, page in taken]

    def finish(self) -> None:
        self.index.commit(self.fills, b"d" * 16 * len(self.fills))
        dirty = self.index.dirty([page for page in self.fills if self.dice.random() < 0.5 and self.is_there(page)])
        self.offset += len(dirty) * 2 * SLOT
        places = [self.offset + 2 * SLOT * at for at in range(len(dirty))]
        self.index.written(dirty, self.dice.randrange(SEGMENTS), places)
        self.fills = []
        next_ones = self.index.next_dirty(SLOT, self.dice.randrange(4))
        self.index.not_written(next_ones)

    def is_there(self, page: int) -> bool:
        try:
            self.index.worth([page])
        except ValueError:
            return False
        return True

    def release(self) -> None:
        if self.holds:
            self.holds.pop(self.dice.randrange(len(self.holds))).release()

    def read(self) -> None:
        if self.reads:
            fates: tuple[list[int], list[int], list[int]] = ([], [], [])
            for page in self.reads:
                fates[self.dice.choice([0, 0, 0, 1, 2])].append(page)
            self.index.finish_read(*fates)
        missing = [page for held in self.holds for page in held.missing()]
        plan = self.index.read_plan(missing, 1 << 20, 9, SLOT, self.pool.now)
        self.reads = [page for read in plan for page in read[3]]

    def lose(self) -> None:
        match self.dice.randrange(8):
            case 0:
                layout, hashes = self.chain()
                self.index.free_deleted(self.index.delete(layout, self.dice.choice(hashes))[1])
                self.index.free_deleted(self.index.take_late())
            case 1:
                self.index.drop_slots(1, [self.dice.randrange(SLOTS)])
            case 2:
                self.index.drop_segment(self.dice.randrange(SEGMENTS), 3)
            case 3:
                self.index.clear_chunk(1, 3)
                self.index.reopen_chunk(1) if self.index.chunks()[0][0] == 1 else self.pool.add_chunk(1, SLOTS)


@pytest.mark.parametrize("seed", range(6))
def test_index_under_random_use_with_the_default_policy_stays_consistent(seed: int) -> None:
    load = Load(seed)
    for _ in range(500):
        load.step()
        load.index.check()
        layout, hashes = load.chain()
        whole, in_dram = load.index.find(layout, hashes, KEYS[layout])
        assert 0 <= in_dram <= whole <= len(hashes)
    assert load.index.evicted_pages > 30
