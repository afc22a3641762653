"""Bit flips in what a stopped store left, in the arena or on the medium: misses or good copies, never wrong bytes.

Many bits are flipped before each start, each in another page, none above or below another one: else the first would
hide what the others do.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dev.faults.place import open_place
from tests.chaos.clients import Clients
from tests.chaos.formats import Region, arena_regions, medium_regions
from tests.chaos.ledger import Ledger, Stretch, Verdict, draw
from tests.chaos.readback import read_back, read_stretch
from tests.chaos.report import CrashReport
from tests.chaos.scene import Scene, keep_log, open_scene
from tests.chaos.workload import SHAPE_BY_NAME, BlockKey, PageKey

DRAM_BYTES: Final = 1 << 30
NVME_BYTES: Final = 512 << 20
"""Little, so that segments are small and many of them sealed."""
PUTS: Final = 250
"""Of one of the writers, to fill the store with."""
FLIPS_PER_START: Final = 100
MEDIUM_SHARE: Final = 0.7
"""How often it is the medium, with an empty arena so that nothing else can serve; else it is the arena."""
PAGES_PER_START: Final = 300
"""Read besides, drawn evenly: none of them may be wrong either."""


class Flip(NamedTuple):
    """One bit of a region."""

    region: Region
    byte: int
    bit: int


class Outcome(NamedTuple):
    """What reading the damaged pages brought."""

    missed: int
    healed: int
    wrong: list[str]


def decide_flips(regions: Sequence[Region], ledger: Ledger, count: int, rng: random.Random) -> list[Flip]:
    """At most so many flips, kinds of regions in turn, whose pages hide nothing from each other."""
    kinds = sorted({region.where for region in regions})
    queues = [rng.sample(own, len(own)) for own in ([it for it in regions if it.where is kind] for kind in kinds)]
    chosen: list[Flip] = []
    taken: set[BlockKey] = set()
    above: set[BlockKey] = set()
    while len(chosen) < count and any(queues):
        for queue in queues:
            if not queue or len(chosen) == count:
                continue
            region = queue.pop()
            shape = SHAPE_BY_NAME[region.key.shape]
            chain = [BlockKey(shape.name, block) for block in ledger.chain(shape, region.key.hash)]
            if chain[-1] in above or not taken.isdisjoint(chain):
                continue
            taken.add(chain[-1])
            above.update(chain)
            chosen.append(Flip(region, rng.randrange(region.length), rng.randrange(8)))
    return chosen


def apply_flips(flips: Sequence[Flip]) -> None:
    """Flip the bits in the files."""
    for flip in flips:
        with flip.region.file.open("r+b") as file:
            file.seek(flip.region.offset + flip.byte)
            value = file.read(1)[0]
            file.seek(flip.region.offset + flip.byte)
            file.write(bytes([value ^ 1 << flip.bit]))


def read_flipped(scene: Scene, flips: Sequence[Flip]) -> Outcome:
    """Ask for each damaged page."""
    missed = healed = 0
    wrong: list[str] = []
    with Clients(scene.place.sockets) as clients:
        for flip in flips:
            key = flip.region.key
            verdict = read_stretch(clients, scene.ledger, stretch_to(scene.ledger, key), key.page, attempts=1)
            healed += verdict.served
            missed += not verdict.served and not verdict.wrong
            wrong += [f"{line} after a flip in a {flip.region.where}" for line in verdict.wrong]
    return Outcome(missed, healed, wrong)


def stretch_to(ledger: Ledger, key: PageKey) -> Stretch:
    """The chain to this page's block, of which that alone is judged."""
    shape = SHAPE_BY_NAME[key.shape]
    chain = ledger.chain(shape, key.hash)
    return Stretch(shape, chain, len(chain) - 1)


class Pristine:
    """Copies of a stopped store's files, to begin from each time."""

    def __init__(self, scene: Scene, home: Path) -> None:
        self._pairs = [(scene.place.arena, home / "arena"), (scene.place.media, home / "media")]
        for live, kept in self._pairs:
            shutil.copytree(live, kept)

    def restore(self) -> None:
        """Put everything back as it was."""
        for live, kept in self._pairs:
            for entry in live.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            shutil.copytree(kept, live, dirs_exist_ok=True)


def run_flips(flips: int, rng: random.Random, report: CrashReport, say: Callable[[str], None]) -> None:
    """So many bit flips, a hundred before each start; `report` is true at every moment.

    Raises FaultsUnavailable, CgroupUnavailable, StoreFailed, TimeoutError.
    """
    with open_place() as home, open_scene(rng, DRAM_BYTES, NVME_BYTES, home / "live") as scene:
        scene.start()
        scene.store_puts(PUTS)
        scene.kill()
        scene.bury()
        pristine = Pristine(scene, home)
        flushed = set(scene.ledger.flushed_pages())
        regions = [
            [it for it in arena_regions(scene.place) if scene.ledger.promise(it.key)],
            [it for it in medium_regions(scene.place) if it.key in flushed],
        ]
        whole = scene.ledger
        while report.bit_flips < flips:
            pristine.restore()
            medium = rng.random() < MEDIUM_SHARE
            scene.ledger = whole.fork(flushed)
            if medium:
                scene.place.empty_arena()
            chosen = decide_flips(regions[medium], whole, min(FLIPS_PER_START, flips - report.bit_flips), rng)
            outcome = try_flips(scene, chosen, rng, report)
            where = "on the medium" if medium else "in the arena"
            say(
                f"{report.bit_flips}/{flips} bits flipped, the last {len(chosen)} {where}: "
                f"{outcome.missed} misses, {outcome.healed} right from a good copy, wrong {len(outcome.wrong)}"
            )
            for line in outcome.wrong[:5]:
                say(f"  wrong: {line}")
        if report.wrong:
            keep_log(scene, report.seed)


def try_flips(scene: Scene, flips: Sequence[Flip], rng: random.Random, report: CrashReport) -> Outcome:
    """Flip the bits, start the store, read, kill it, and add to `report`."""
    apply_flips(flips)
    scene.start()
    outcome = read_flipped(scene, flips)
    others = read_others(scene, rng)
    scene.kill()
    scene.bury()
    report.bit_flips += len(flips)
    report.detected += outcome.missed + outcome.healed
    report.missed += outcome.missed
    report.served += outcome.healed + others.served
    report.wrong += len(outcome.wrong) + len(others.wrong)
    return outcome


def read_others(scene: Scene, rng: random.Random) -> Verdict:
    """The verdict on pages drawn evenly. What is absent may have hung below a damaged page."""
    with Clients(scene.place.sockets) as clients:
        return read_back(clients, scene.ledger, draw(scene.ledger.stretches(), PAGES_PER_START, rng), attempts=1)
