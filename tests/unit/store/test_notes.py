"""Notes of what was deleted: what a successor finds beside slots that others fill meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from kvtier_agent.store import deletions, edits, jobs
from kvtier_agent.store.arena_format import decide_geometry
from kvtier_agent.store.checksums import payload_digest
from kvtier_agent.store.core import Core, Pool
from kvtier_agent.store.edits import Edits
from kvtier_agent.store.errors import MoverDied
from kvtier_agent.store.mover import CopyMover
from kvtier_agent.store.no_nvme import NoNvme
from kvtier_agent.store.refs import Ref, decode_refs
from kvtier_client.protocol.messages import Delete, HashList

POOL, CHUNK, SIZE = "pool-1", 1, 4096
LAYOUT = b"L" * 32
CUT = decide_geometry(SIZE, 1 << 20, 4096)


def hash_of(name: str) -> bytes:
    return name.encode().ljust(32, b".")


class Mover:
    """One mover of the arena, in this process (`Movers`)."""

    def __init__(self, arena: Path) -> None:
        self.arena = arena
        self.work = CopyMover(arena)
        self.done: list[type] = []
        self.dies_after: type | None = None
        """The kind of job whose answer is lost."""

    def next_id(self) -> int:
        return len(self.done)

    async def run(self, job: Any, priority: Any) -> list[Any]:
        del priority
        return self.carry_out(job)

    def carry_out(self, job: Any) -> list[Any]:
        replies: list[Any] = []
        self.work.carry_out(job, None, replies.append)
        self.done.append(type(job))
        if type(job) is self.dies_after:
            self.dies_after = None
            raise MoverDied(0)
        return replies

    def begin(self, slot: int, generation: int) -> None:
        """A copy into the slot has begun."""
        chunk = self.work._chunks.get(POOL, CHUNK)
        chunk.begin(slot, generation)
        chunk.payload(slot, SIZE)[:] = bytes([generation]) * SIZE

    def commit(self, slot: int, generation: int, name: str, begun: int) -> None:
        """The copy ends."""
        digest = payload_digest(bytes([generation]) * SIZE)
        at = CUT.payload_offset(slot)
        page = Ref(LAYOUT, hash_of(name), b"", digest, generation, at, 1, SIZE, 0, 0, CHUNK, slot, 0, 0, 0, 0)
        self.work._chunks.get(POOL, CHUNK).commit(page, begun)

    def store(self, slot: int, generation: int, name: str) -> None:
        self.begin(slot, generation)
        self.commit(slot, generation, name, time.monotonic_ns())


class _Core:
    """Of a core what deletions need."""

    def __init__(self, movers: Mover) -> None:
        self.movers, self.nvme = movers, NoNvme()


@pytest.fixture
def mover(arena: Path) -> Mover:
    """Carries out what the index process asks for, with one chunk."""
    made = Mover(arena)
    made.carry_out(jobs.CreateChunk(0, POOL, CHUNK, *CUT))
    return made


@pytest.fixture
def other(mover: Mover) -> Mover:
    """Fills slots."""
    return Mover(mover.arena)


async def delete(pool: Pool, mover: Mover, *names: str) -> None:
    """Acknowledged when it returns."""
    message = Delete(1, LAYOUT, HashList.of([hash_of(name) for name in names]))
    await Edits(cast(Core, _Core(mover))).delete(pool, message)


def found_by_successor(arena: Path) -> list[bytes]:
    """The blocks in the slots that are adopted after a kill."""
    (scan,) = Mover(arena).carry_out(jobs.ScanChunk(1, POOL, CHUNK))
    return [ref.hash for ref in decode_refs(scan.refs)]


def names(hashes: Sequence[bytes]) -> list[str]:
    return [hash_.decode().rstrip(".") for hash_ in hashes]


async def test_copy_that_goes_on_while_notes_are_compacted_does_not_bring_its_deleted_block_back(
    arena: Path, mover: Mover, other: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "_NOTES_BYTES", 0)
    pool = Pool(POOL)
    begun = pool.fills.begin()
    other.begin(0, 1)
    await delete(pool, mover, "a")
    await delete(pool, mover, "b")
    await delete(pool, mover, "c")
    assert mover.done.count(jobs.CompactNotes) >= 1
    other.commit(0, 1, "a", begun)
    pool.fills.end(begun)
    await delete(pool, mover, "d", "e", "f", "g", "h")
    assert mover.done[-1] is jobs.CompactNotes, "again, now that the slot is committed"
    assert list(deletions.read(arena / POOL).blocks) == [(LAYOUT, hash_of("a"))], "no slot needs the others"
    assert found_by_successor(arena) == []


async def test_page_that_takes_a_void_slot_while_notes_are_compacted_stays(
    arena: Path, mover: Mover, other: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "_NOTES_BYTES", 0)
    other.store(0, 1, "a")
    chunk = mover.work._chunks.get(POOL, CHUNK)
    scan = chunk.scan

    def scan_and_lose_the_slot(slot: int) -> Any:
        found = scan(slot)
        if slot == 0:
            other.store(0, 2, "new")
        return found

    monkeypatch.setattr(chunk, "scan", scan_and_lose_the_slot)
    await delete(Pool(POOL), mover, "a")
    assert names(found_by_successor(arena)) == ["new"]


async def test_deletion_after_a_compaction_whose_mover_died_is_found(
    arena: Path, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "_NOTES_BYTES", 3 * deletions.RECORD_BYTES)
    pool = Pool(POOL)
    mover.dies_after = jobs.CompactNotes
    await delete(pool, mover, *"abcd")
    assert (mover.dies_after, deletions.read(arena / POOL).blocks) == (None, {}), "compacted, unanswered"
    await delete(pool, mover, "e")
    await delete(pool, mover, "f")
    assert list(deletions.read(arena / POOL).blocks) == [(LAYOUT, hash_of("e")), (LAYOUT, hash_of("f"))]


async def test_notes_that_slots_need_are_compacted_again_only_once_they_are_twice_as_many(
    arena: Path, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "_NOTES_BYTES", 3 * deletions.RECORD_BYTES)
    pool = Pool(POOL)
    blocks = [f"{number}" for number in range(10)]
    for slot, name in enumerate(blocks):
        mover.store(slot, 1, name)
    compactions = []
    for name in blocks:
        await delete(pool, mover, name)
        compactions.append(mover.done.count(jobs.CompactNotes))
    assert compactions == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert sorted(deletions.read(arena / POOL).blocks) == [(LAYOUT, hash_of(name)) for name in blocks]
    assert found_by_successor(arena) == []


def test_expiry_is_kept_as_long_as_a_slot_needs_it(arena: Path, mover: Mover) -> None:
    mover.store(0, 1, "a")
    (noted,) = mover.carry_out(jobs.NoteExpired(1, POOL, 0, 2, time.monotonic_ns()))
    (compacted,) = mover.carry_out(jobs.CompactNotes(2, POOL, time.monotonic_ns()))
    assert noted.value == compacted.value == deletions.RECORD_BYTES
    mover.store(0, 2, "b")
    (compacted,) = mover.carry_out(jobs.CompactNotes(3, POOL, time.monotonic_ns()))
    assert compacted.value == 0
    assert names(found_by_successor(arena)) == ["b"]
