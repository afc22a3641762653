"""What is promised after a power cut: what was flushed before it, less what may be deleted by then."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from kvtier_client.protocol.messages import Reach

from dev.faults.filesystems import make_ext4, mounted
from dev.faults.place import loop_device
from dev.faults.recording import Recording
from tests.chaos.cuts import Event, Kind, Recorded
from tests.chaos.ledger import Ledger
from tests.chaos.workload import SHAPE_BY_NAME, BlockKey, PageKey, PutPlan, decide_chain

SHAPE = SHAPE_BY_NAME["one/aligned"]
VOLUME_NAME_AT = 1024 + 0x78
"""In the superblock of an ext4."""


def chain(seed: int, ledger: Ledger, parent: PutPlan | None = None) -> PutPlan:
    (plan,) = decide_chain(random.Random(seed), SHAPE, [], longest_blocks=3)
    plan = PutPlan(SHAPE, parent.blocks[-1] if parent else None, plan.blocks, plan.pages, Reach.FLUSHED)
    ledger.expect(plan)
    ledger.acknowledge(plan, Reach.FLUSHED)
    return plan


def blocks(*plans: PutPlan) -> frozenset[BlockKey]:
    return frozenset(BlockKey(SHAPE.name, block) for plan in plans for block in plan.blocks)


def pages(*plans: PutPlan) -> set[PageKey]:
    return {key for plan in plans for key in plan.page_keys()}


@pytest.fixture
def plans() -> tuple[Ledger, PutPlan, PutPlan, PutPlan]:
    """Stored before the recording; stored in it; stored below that one."""
    ledger = Ledger()
    before, stored = chain(1, ledger), chain(2, ledger)
    return ledger, before, stored, chain(3, ledger, stored)


@pytest.fixture
def recorded(plans: tuple[Ledger, PutPlan, PutPlan, PutPlan]) -> Recorded:
    """Marks 0 to 5 at the positions 10, 20, ...: both put, the lower one and then the first one deleted, the end."""
    ledger, before, stored, below = plans
    events: list[Event] = [
        (Kind.STORED, frozenset(pages(stored))),
        (Kind.STORED, frozenset(pages(below))),
        (Kind.DELETING, blocks(below)),
        (Kind.DELETED, blocks(below)),
        (Kind.DELETING, blocks(before)),
        (Kind.END, frozenset[BlockKey]()),
    ]
    marks = {number: 10 * (number + 1) for number in range(len(events))}
    recording = Recording(marks=marks, length=70)
    return Recorded(Path("base"), False, recording, events, ledger, frozenset(pages(before)), frozenset())


@pytest.mark.parametrize(
    ("cut", "promised", "deleted"),
    [(5, "b", ""), (10, "b", ""), (11, "bs", ""), (25, "bsl", ""), (35, "bs", ""), (45, "bs", "l"), (55, "s", "l")],
)
def test_cut_promises_what_was_flushed_and_not_yet_deleted(
    recorded: Recorded, plans: tuple[Ledger, PutPlan, PutPlan, PutPlan], cut: int, promised: str, deleted: str
) -> None:
    by_letter = dict(zip("bsl", plans[1:], strict=True))
    ledger = recorded.ledger_at(cut)
    assert set(ledger.flushed_pages()) == pages(*(by_letter[letter] for letter in promised))
    assert ledger.deleted() == blocks(*(by_letter[letter] for letter in deleted))


def test_random_cuts_lie_between_the_start_and_the_end_of_the_store(recorded: Recorded) -> None:
    rng = random.Random(6)
    cuts = {recorded.random_cut(rng) for _ in range(2_000)}
    assert cuts == set(range(1, 61))


def test_last_acknowledged_are_the_blocks_of_the_latest_marks(
    recorded: Recorded, plans: tuple[Ledger, PutPlan, PutPlan, PutPlan]
) -> None:
    _, _, stored, below = plans
    assert recorded.last_acknowledged(11) == blocks(stored)
    assert recorded.last_acknowledged(25) == blocks(stored, below)


def test_file_system_with_a_torn_superblock_is_repaired(place: Path) -> None:
    image = place / "torn.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    with loop_device(image) as loop:
        make_ext4(loop)
        with mounted(loop, place / "torn") as folder:
            (folder / "kept").write_text("kept")
        with loop.open("r+b", buffering=0) as device:
            block = bytearray(device.read(4096))
            block[VOLUME_NAME_AT] ^= 1
            device.seek(0)
            device.write(block)
            os.fsync(device.fileno())
        with mounted(loop, place / "torn") as folder:
            assert (folder / "kept").read_text() == "kept"
