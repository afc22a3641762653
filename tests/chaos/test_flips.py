"""Bit flips hit what they say, and each of them shows: no page that is flipped hides another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtier_client.protocol.messages import Reach

from tests.chaos.flips import Flip, apply_flips, decide_flips, read_flipped
from tests.chaos.formats import Region, Where, arena_regions, medium_regions
from tests.chaos.ledger import Ledger
from tests.chaos.memory_cgroup import CgroupUnavailable
from tests.chaos.scene import Scene, open_scene
from tests.chaos.workload import SHAPE_BY_NAME, SHAPES, PageKey, decide_chain, payload

SHAPE = SHAPE_BY_NAME["one/aligned"]


@pytest.fixture(scope="module")
def stopped() -> Iterator[Scene]:
    """A killed store that has stored chains of every layout."""
    try:
        opened = open_scene(random.Random(4), 768 << 20, 256 << 20)
        with opened as scene:
            scene.start()
            scene.store_puts(40)
            for _ in range(20):  # what was only to reach dram may not have been written when the store is killed
                if {key.shape for key in scene.ledger.flushed_pages()} == {shape.name for shape in SHAPES}:
                    break
                scene.store_puts(10)
            scene.kill()
            scene.bury()
            yield scene
    except CgroupUnavailable as reason:
        pytest.skip(str(reason))


def content(region: Region) -> bytes:
    with region.file.open("rb") as file:
        file.seek(region.offset)
        return file.read(region.length)


def test_payload_regions_hold_the_bytes_of_every_flushed_page(stopped: Scene) -> None:
    regions = [it for it in medium_regions(stopped.place) if it.where is Where.MEDIUM_PAYLOAD]
    assert {it.key for it in regions} >= set(stopped.ledger.flushed_pages())
    assert all(content(it) == payload(it.key) for it in regions)
    assert len({it.key.shape for it in regions}) == len(SHAPES)


@pytest.mark.parametrize("where", [Where.MEDIUM_HEADER, Where.SLOT_HEADER])
def test_header_regions_name_their_page(stopped: Scene, where: Where) -> None:
    found = [it for it in (*medium_regions(stopped.place), *arena_regions(stopped.place)) if it.where is where]
    assert found
    assert all(bytes(it.key.hash) in content(it) for it in found)


def test_flipped_page_is_read_as_damaged(stopped: Scene) -> None:
    flushed = set(stopped.ledger.flushed_pages())
    payloads = [it for it in medium_regions(stopped.place) if it.where is Where.MEDIUM_PAYLOAD]
    copies = Counter(it.key for it in payloads)  # another copy would heal the page
    regions = [it for it in payloads if it.key in flushed and copies[it.key] == 1]
    flips = decide_flips(regions, stopped.ledger, 10, random.Random(1))
    before = [content(flip.region) for flip in flips]
    apply_flips(flips)
    assert all(content(flip.region) != old for flip, old in zip(flips, before, strict=True))
    stopped.place.empty_arena()
    stopped.start()
    outcome = read_flipped(stopped, flips)
    assert (outcome.missed, outcome.healed, outcome.wrong) == (len(flips), 0, [])
    apply_flips(flips)


def test_flipped_pages_lie_neither_above_nor_below_each_other() -> None:
    rng, ledger, regions = random.Random(2), Ledger(), list[Region]()
    for _ in range(30):
        for plan in decide_chain(rng, SHAPE, ledger.parents_for(SHAPE)):
            ledger.expect(plan)
            ledger.acknowledge(plan, Reach.FLUSHED)
            regions += [Region(rng.choice(list(Where)), key, Path("file"), 0, 100) for key in plan.page_keys()]
    flips = decide_flips(regions, ledger, 12, rng)
    chains = [ledger.chain(SHAPE, flip.region.key.hash) for flip in flips]
    assert len(flips) == 12
    for one in chains:
        assert [chain for chain in chains if one[-1] in chain] == [one]
    assert {flip.region.where for flip in flips} == set(Where)


def test_applied_twice_a_flip_is_undone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\x0f" * 8)
    key = PageKey(SHAPE.name, decide_chain(random.Random(3), SHAPE, [])[0].blocks[0], SHAPE.pages[0])
    flip = Flip(Region(Where.SUMMARY, key, file, 2, 4), byte=3, bit=7)
    apply_flips([flip])
    assert file.read_bytes() == b"\x0f" * 5 + b"\x8f" + b"\x0f" * 2
    apply_flips([flip])
    assert file.read_bytes() == b"\x0f" * 8
