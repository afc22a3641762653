"""Damage to the medium, to the arena and to the format's marks, while the store is down: misses, never wrong bytes.

Formats: docs/formats.md. The arena is emptied where the nvme tier's copy is meant, so that nothing else can serve.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.corpus import lose_memory, restart, store_flushed
from tests.chaos.formats import Unit, find_units, medium_file, renumber
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.scene import Scene, open_scene
from tests.chaos.store_process import StoreFailed

DRAM_BYTES: Final = 256 << 20
SECTOR: Final = 512
PAGE: Final = 4096

Damage = Callable[[Unit, random.Random], None]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(3)


@pytest.fixture
def scene(rng: random.Random) -> Iterator[Scene]:
    """A store that serves, and has flushed some chains of every layout."""
    try:
        opened = open_scene(rng, DRAM_BYTES)
        with opened as scene:
            scene.start()
            store_flushed(scene, rng)
            yield scene
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def change(unit: Unit, change_: Callable[[bytearray], None], length: int | None = None) -> None:
    """Read the unit, or its head, change it and write it back."""
    with unit.file.open("r+b") as file:
        file.seek(unit.offset)
        data = bytearray(file.read(length or unit.length))
        change_(data)
        file.seek(unit.offset)
        file.write(data)


def flip_bits(unit: Unit, rng: random.Random) -> None:
    def flip(data: bytearray) -> None:
        for _ in range(max(64, len(data) >> 16)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)

    change(unit, flip)


def flip_bits_in_heads(unit: Unit, rng: random.Random) -> None:
    """In the first pages, where the segment's and the first run's headers are."""

    def flip(data: bytearray) -> None:
        for _ in range(16):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)

    change(unit, flip, length=4 * PAGE)


def zero_sectors(unit: Unit, rng: random.Random) -> None:
    def zero(data: bytearray) -> None:
        for _ in range(64):
            at = rng.randrange(len(data) // SECTOR) * SECTOR
            data[at : at + SECTOR] = bytes(SECTOR)

    change(unit, zero)


def zero_tail(unit: Unit, rng: random.Random) -> None:
    def zero(data: bytearray) -> None:
        at = rng.randrange(len(data))
        data[at:] = bytes(len(data) - at)

    change(unit, zero)


def swap_pages(unit: Unit, rng: random.Random) -> None:
    """Misdirected writes: good bytes in the wrong place."""

    def swap(data: bytearray) -> None:
        for _ in range(64):
            one, other = (rng.randrange(len(data) // PAGE) * PAGE for _ in range(2))
            data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]

    change(unit, swap)


def repeat_head(unit: Unit, rng: random.Random) -> None:
    """A stale copy of the unit's first runs further behind."""

    def repeat(data: bytearray) -> None:
        at = rng.randrange(len(data) // 2 // PAGE, len(data) // PAGE) * PAGE
        data[at:] = data[: len(data) - at]

    change(unit, repeat)


def flip_bits_in_slot_headers(path: Path, rng: random.Random) -> None:
    """Between the chunk's header and its payloads, one bit in every second slot header on average."""
    with path.open("r+b") as file:
        first, payload_at = struct.unpack_from("<QQ", file.read(4096), 40)
        headers = bytearray(file.read(payload_at - first))
        for _ in range(len(headers) // 512):
            headers[rng.randrange(len(headers))] ^= 1 << rng.randrange(8)
        file.seek(first)
        file.write(headers)


@pytest.mark.parametrize(
    "damage",
    [flip_bits, flip_bits_in_heads, zero_sectors, zero_tail, swap_pages, repeat_head],
    ids=lambda f: f.__name__,
)
def test_damaged_segments_are_misses_and_what_is_lost_can_be_stored_again(
    scene: Scene, rng: random.Random, damage: Damage
) -> None:
    lose_memory(scene)
    units = find_units(scene.place)
    assert units
    for unit in units:
        damage(unit, rng)
    assert restart(scene).wrong == []
    store_flushed(scene, rng)
    lose_memory(scene)
    again = restart(scene)
    assert (again.wrong, again.lost_flushed) == ([], set())


def test_device_file_that_was_cut_short_brings_misses(scene: Scene, rng: random.Random) -> None:
    lose_memory(scene)
    last = find_units(scene.place)[-1]
    os.truncate(last.file, last.offset + last.length // 3)
    assert restart(scene).wrong == []
    store_flushed(scene, rng)
    lose_memory(scene)
    again = restart(scene)
    assert (again.wrong, again.lost_flushed) == ([], set())


def test_undamaged_segments_bring_everything_back(scene: Scene) -> None:
    lose_memory(scene)
    verdict = restart(scene)
    assert (verdict.wrong, verdict.lost_flushed) == ([], set())
    assert verdict.served >= scene.ledger.promised_pages() > 0


def test_one_lost_segment_leaves_the_others_served(scene: Scene) -> None:
    lose_memory(scene)
    units = find_units(scene.place)
    change(units[-1], lambda data: data.__setitem__(slice(None), bytes(len(data))), length=PAGE)
    assert len(find_units(scene.place)) == len(units) - 1 > 0
    verdict = restart(scene)
    assert verdict.wrong == []
    assert verdict.served > 0


def test_lost_first_superblock_is_read_from_its_copy(scene: Scene) -> None:
    lose_memory(scene)
    with medium_file(scene.place).open("r+b") as file:
        file.write(bytes(PAGE))
    verdict = restart(scene)
    assert (verdict.wrong, verdict.lost_flushed) == ([], set())


def test_damaged_slot_headers_are_misses_in_dram(scene: Scene, rng: random.Random) -> None:
    scene.kill()
    chunks = list(scene.place.arena.rglob("*.chunk"))
    assert chunks
    for chunk in chunks:
        flip_bits_in_slot_headers(chunk, rng)
    verdict = restart(scene)
    assert verdict.wrong == []
    assert verdict.lost_dram


def test_foreign_files_on_the_device_are_left_alone(scene: Scene, rng: random.Random) -> None:
    foreign = {scene.place.media / "README": b"not ours", scene.place.media / "disk.img": rng.randbytes(10_000)}
    for path, content in foreign.items():
        path.write_bytes(content)
    lose_memory(scene)
    assert restart(scene).lost_flushed == set()
    assert {path: path.read_bytes() for path in foreign} == foreign


def test_device_of_another_format_is_refused_and_left_as_it_is(scene: Scene) -> None:
    lose_memory(scene)
    for copy in range(2):
        renumber(medium_file(scene.place), copy * PAGE)
    before = contents(scene.place.media)
    verdict = restart(scene)
    assert (verdict.served, verdict.wrong) == (0, [])
    scene.kill()
    assert contents(scene.place.media) == before
    assert "format 7" in scene.place.log.read_text()


def test_segment_of_another_format_is_left_as_it_is(scene: Scene) -> None:
    lose_memory(scene)
    newest = find_units(scene.place)[-1]
    renumber(newest.file, newest.offset)
    before = unit_bytes(newest)
    verdict = restart(scene)
    assert verdict.wrong == []
    scene.kill()
    assert unit_bytes(newest) == before
    assert "format 7" in scene.place.log.read_text()


def test_chunk_of_another_format_ends_the_start_and_nothing_changes(scene: Scene) -> None:
    scene.kill()
    newest = sorted(scene.place.arena.rglob("*.chunk"))[-1]
    renumber(newest, 0)
    before = contents(scene.place.arena)
    with pytest.raises(StoreFailed, match=f"{newest}.*format 7"):
        scene.start()
    assert contents(scene.place.arena) == before


@pytest.mark.parametrize("size", [0, 4096, 1 << 20])
@pytest.mark.parametrize("suffix", [".new", ".gone"])
def test_chunk_half_made_or_half_gone_is_removed_at_the_start(scene: Scene, suffix: str, size: int) -> None:
    scene.kill()
    newest = sorted(scene.place.arena.rglob("*.chunk"))[-1]
    leftover = newest.with_name(f"{int(newest.stem, 16) + 1:016x}{suffix}")
    leftover.write_bytes(bytes(size))
    verdict = restart(scene)
    assert (verdict.lost_dram, verdict.wrong) == (set(), [])
    assert not leftover.exists()


def contents(folder: Path) -> dict[Path, str]:
    """Digests of the files below a folder."""
    return {path: digest(path) for path in folder.rglob("*") if path.is_file()}


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def unit_bytes(unit: Unit) -> bytes:
    with unit.file.open("rb") as file:
        file.seek(unit.offset)
        return file.read(unit.length)
