"""Damage to the medium, to the arena and to the format's marks, while the store is down: misses, never wrong bytes.

Formats: docs/formats.md. The arena is emptied where the nvme tier's copy is meant, so that nothing else can serve.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.corpus import lose_memory, restart, store_flushed
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.scene import Scene, open_scene
from tests.chaos.store_process import StoreFailed

DRAM_BYTES: Final = 256 << 20
SECTOR: Final = 512

Damage = Callable[[Path, random.Random], None]


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


def segments(scene: Scene) -> list[Path]:
    """The segment files of the device."""
    return sorted(scene.place.media.rglob("*.seg"))


def flip_bits(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for _ in range(max(8, size >> 19)):
            at = rng.randrange(size)
            file.seek(at)
            value = file.read(1)[0] ^ 1 << rng.randrange(8)
            file.seek(at)
            file.write(bytes([value]))


def flip_bits_in_heads(path: Path, rng: random.Random) -> None:
    """In the first pages, where the segment's and the first run's headers are."""
    with path.open("r+b") as file:
        head = bytearray(file.read(4 * 4096))
        for _ in range(16):
            head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
        file.seek(0)
        file.write(head)


def flip_bits_in_slot_headers(path: Path, rng: random.Random) -> None:
    """Between the chunk's header and its payloads, one bit in every second slot header on average."""
    with path.open("r+b") as file:
        first, payload_at = struct.unpack_from("<QQ", file.read(4096), 40)
        headers = bytearray(file.read(payload_at - first))
        for _ in range(len(headers) // 512):
            headers[rng.randrange(len(headers))] ^= 1 << rng.randrange(8)
        file.seek(first)
        file.write(headers)


def cut_tail(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def zero_sectors(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        for _ in range(8):
            file.seek(rng.randrange(path.stat().st_size // SECTOR) * SECTOR)
            file.write(bytes(SECTOR))


def swap_sectors(path: Path, rng: random.Random) -> None:
    """Misdirected writes: good bytes in the wrong place."""
    with path.open("r+b") as file:
        sectors = path.stat().st_size // 4096
        for _ in range(8):
            one, other = (rng.randrange(sectors) * 4096 for _ in range(2))
            file.seek(one)
            data = file.read(4096)
            file.seek(other)
            file.write(data)


def repeat_tail(path: Path, rng: random.Random) -> None:
    """A stale copy of earlier runs behind the last one."""
    data = path.read_bytes()
    path.write_bytes(data + data[rng.randrange(len(data) // 4096) * 4096 :])


@pytest.mark.parametrize(
    "damage",
    [flip_bits, flip_bits_in_heads, cut_tail, zero_sectors, swap_sectors, repeat_tail],
    ids=lambda f: f.__name__,
)
def test_damaged_segments_are_misses_and_what_is_lost_can_be_stored_again(
    scene: Scene, rng: random.Random, damage: Damage
) -> None:
    lose_memory(scene)
    assert segments(scene)
    for path in segments(scene):
        damage(path, rng)
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


def test_one_lost_segment_leaves_the_others_served(scene: Scene, rng: random.Random) -> None:
    before = set(segments(scene))
    lose_memory(scene)
    scene.start()
    store_flushed(scene, rng)
    newer = sorted(set(segments(scene)) - before)
    assert newer
    lose_memory(scene)
    newer[-1].unlink()
    verdict = restart(scene)
    assert verdict.wrong == []
    assert verdict.served > 0


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
    (mark,) = scene.place.media.rglob("FORMAT")
    mark.write_text("kvtier media format 7\n")
    before = contents(scene.place.media)
    verdict = restart(scene)
    assert (verdict.served, verdict.wrong) == (0, [])
    scene.kill()
    assert contents(scene.place.media) == before
    assert "media format 7" in scene.place.log.read_text()


def test_segment_of_another_format_is_refused_and_left_as_it_is(scene: Scene) -> None:
    lose_memory(scene)
    newest = segments(scene)[-1]
    renumber(newest)
    before = newest.read_bytes()
    verdict = restart(scene)
    assert verdict.wrong == []
    scene.kill()
    assert newest.read_bytes() == before
    assert "format 7" in scene.place.log.read_text()


def test_chunk_of_another_format_ends_the_start_and_nothing_changes(scene: Scene) -> None:
    scene.kill()
    newest = sorted(scene.place.arena.rglob("*.chunk"))[-1]
    renumber(newest)
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


def contents(folder: Path) -> dict[Path, bytes]:
    """What lies in the files below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def renumber(path: Path) -> None:
    """Give a chunk or a segment the format number 7."""
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 7))
