"""The crash test can fail: each kind of broken promise is found, and what was not promised is not missed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from kvtier_client.protocol.messages import Reach, Tier

from tests.chaos.ledger import Ledger, Stretch, Verdict, draw, is_right, judge_chain
from tests.chaos.report import CrashReport, Least, find_faults, join
from tests.chaos.rounds import Moment, decide_round
from tests.chaos.workload import SHAPE_BY_NAME, PageKey, PutPlan, decide_chain, payload

SHAPE = SHAPE_BY_NAME["one/aligned"]
PAGE = SHAPE.pages[0]


def chain_of(blocks: int, reach: Reach, parent: PutPlan | None = None) -> PutPlan:
    hashes = tuple(random.randbytes(32) for _ in range(blocks))
    return PutPlan(SHAPE, parent.blocks[-1] if parent else None, hashes, SHAPE.pages, reach)  # type: ignore[arg-type]


def stretch_of(plan: PutPlan, start: int = 0) -> Stretch:
    return Stretch(SHAPE, list(plan.blocks), start)


def judge(ledger: Ledger, plan: PutPlan, served: int, tier: Tier = Tier.DRAM) -> Verdict:
    return judge_chain(ledger, stretch_of(plan), PAGE, [True] * served, [tier] * served)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def flushed(ledger: Ledger) -> PutPlan:
    plan = chain_of(4, Reach.FLUSHED)
    ledger.expect(plan)
    ledger.acknowledge(plan, Reach.FLUSHED)
    return plan


def test_acknowledged_pages_served_from_dram_are_all_well(ledger: Ledger, flushed: PutPlan) -> None:
    assert judge(ledger, flushed, served=4) == Verdict(served=4)


def test_absent_flushed_page_is_lost_in_both_ways(ledger: Ledger, flushed: PutPlan) -> None:
    verdict = judge(ledger, flushed, served=3)
    assert verdict.lost_flushed == verdict.lost_dram == {PageKey(SHAPE.name, flushed.blocks[3], PAGE)}


def test_page_whose_slot_was_lost_but_nvme_has_it_is_lost_dram(ledger: Ledger, flushed: PutPlan) -> None:
    verdict = judge(ledger, flushed, served=4, tier=Tier.NVME)
    assert (len(verdict.lost_dram), len(verdict.lost_flushed), verdict.served) == (4, 0, 4)


def test_known_page_may_come_from_nvme_but_not_be_absent(ledger: Ledger) -> None:
    plan = chain_of(2, Reach.DRAM)
    ledger.expect(plan)
    ledger.acknowledge(plan, Reach.DRAM, all_new=False)
    assert judge(ledger, plan, served=2, tier=Tier.NVME) == Verdict(served=2)
    assert len(judge(ledger, plan, served=1).lost_dram) == 1


def test_lost_arena_leaves_only_flushed_pages_promised(ledger: Ledger, flushed: PutPlan) -> None:
    child = chain_of(2, Reach.DRAM, parent=flushed)
    ledger.expect(child)
    ledger.acknowledge(child, Reach.DRAM)
    ledger.lose_arena()
    assert judge(ledger, flushed, served=4, tier=Tier.NVME) == Verdict(served=4)
    assert judge(ledger, child, served=0) == Verdict()
    assert len(judge(ledger, flushed, served=0).lost_flushed) == 4


def test_unacknowledged_page_may_be_absent_but_not_wrong(ledger: Ledger) -> None:
    plan = chain_of(2, Reach.FLUSHED)
    ledger.expect(plan)
    assert judge(ledger, plan, served=0) == Verdict()
    assert len(judge_chain(ledger, stretch_of(plan), PAGE, [True, False], [Tier.DRAM] * 2).wrong) == 1


@pytest.mark.parametrize("damage", ["flip", "other block", "short", "long"])
def test_bytes_that_are_not_the_pages_own_are_wrong(damage: str) -> None:
    key, other = (
        PageKey(SHAPE.name, plan.blocks[0], PAGE) for plan in (chain_of(1, Reach.DRAM), chain_of(1, Reach.DRAM))
    )
    right = payload(key)
    served = {
        "flip": right[:-1] + bytes([right[-1] ^ 1]),
        "other block": payload(other),
        "short": right[:-1],
        "long": right + b"\0",
    }[damage]
    assert is_right(key, memoryview(right))
    assert not is_right(key, memoryview(served))


def test_chains_touch_every_block_and_share_ancestors(ledger: Ledger, flushed: PutPlan) -> None:
    children = [chain_of(2, Reach.DRAM, parent=flushed) for _ in range(2)]
    for child in children:
        ledger.expect(child)
    assert sorted(ledger.chains(SHAPE)) == sorted([*flushed.blocks, *child.blocks] for child in children)


def test_only_blocks_promised_whole_are_continued(ledger: Ledger) -> None:
    first, second = decide_chain(random.Random(1), SHAPE_BY_NAME["one/two-ranks"], [])
    ledger.expect(first)
    ledger.acknowledge(first, Reach.DRAM)
    assert ledger.parents_for(first.shape) == []
    ledger.expect(second)
    ledger.acknowledge(second, Reach.DRAM)
    assert set(ledger.parents_for(first.shape)) == set(first.blocks)


@pytest.mark.parametrize("figure", ["lost_dram", "lost_flushed", "wrong", "failed_puts", "oom_kills"])
def test_report_with_any_damage_names_the_fault(figure: str) -> None:
    report = CrashReport(seed=1, drawn=10, kills_with_put_in_flight=4)
    assert find_faults(report, Least(drawn=10, kills_with_put_in_flight=4)) == []
    setattr(report, figure, 1)
    assert find_faults(report, Least(drawn=10, kills_with_put_in_flight=4)) == [f"{figure} is 1, must be 0"]


def test_report_with_too_few_reads_or_puts_in_flight_proves_nothing() -> None:
    report = CrashReport(seed=1, drawn=9, kills_with_put_in_flight=3)
    assert find_faults(report, Least(drawn=10, kills_with_put_in_flight=4)) == [
        "kills_with_put_in_flight is 3, must be at least 4",
        "drawn is 9, must be at least 10",
    ]


def test_bit_flip_that_was_not_detected_is_a_fault() -> None:
    assert find_faults(CrashReport(bit_flips=3, detected=3), Least(bit_flips=3)) == []
    assert find_faults(CrashReport(bit_flips=3, detected=2), Least(bit_flips=3)) == [
        "detected is 2, must be all 3 bit flips"
    ]


def test_joined_report_sums_counts_and_keeps_the_largest_memory() -> None:
    parts = [
        CrashReport(5, kills=2, wrong=1, memory_peak_bytes=10, wall_s=9.0),
        CrashReport(6, kills=3, memory_peak_bytes=30),
    ]
    assert join(7, parts, 4.0) == CrashReport(7, kills=5, wrong=1, memory_peak_bytes=30, wall_s=4.0)


def test_blocks_above_a_stretch_are_not_judged_on_it(ledger: Ledger, flushed: PutPlan) -> None:
    below = stretch_of(flushed, start=2)
    assert judge_chain(ledger, below, PAGE, [True, True], [Tier.DRAM] * 4) == Verdict(served=2)
    lost = judge_chain(ledger, below, PAGE, [], [Tier.DRAM])
    assert lost.lost_flushed == {PageKey(SHAPE.name, block, PAGE) for block in flushed.blocks[2:]}


def test_stretches_judge_every_block_exactly_once(ledger: Ledger, flushed: PutPlan) -> None:
    for _ in range(3):
        ledger.expect(chain_of(2, Reach.DRAM, parent=flushed))
    judged = [block for stretch in ledger.stretches() for block in stretch.blocks]
    assert len(judged) == len(set(judged)) == 4 + 3 * 2


def test_drawing_reaches_every_block_alike(ledger: Ledger) -> None:
    for _ in range(10):
        ledger.expect(chain_of(3, Reach.DRAM))
    rng = random.Random(1)
    met = Counter(
        block for _ in range(2000) for stretch in draw(ledger.stretches(), 3, rng) for block in stretch.blocks
    )
    assert len(met) == 30
    assert max(met.values()) < 1.5 * min(met.values())


def test_fork_promises_the_named_pages_alone(ledger: Ledger, flushed: PutPlan) -> None:
    named = {PageKey(SHAPE.name, block, PAGE) for block in flushed.blocks[:2]}
    fork = ledger.fork(named)
    assert judge(fork, flushed, served=2, tier=Tier.NVME) == Verdict(served=2)
    assert judge(fork, flushed, served=1).lost_flushed == {PageKey(SHAPE.name, flushed.blocks[1], PAGE)}
    assert list(fork.parents_for(SHAPE)) == list(flushed.blocks[:2])
    assert ledger.promised_pages() == 4


def test_same_page_of_another_pool_has_other_bytes_in_the_same_layout() -> None:
    here, there = SHAPE_BY_NAME["one/tiny"], SHAPE_BY_NAME["two/tiny"]
    block = decide_chain(random.Random(1), here, [])[0].blocks[0]
    assert here.fingerprint == there.fingerprint
    assert payload(PageKey(here.name, block, PAGE)) != payload(PageKey(there.name, block, PAGE))


@pytest.mark.parametrize("answered_before_the_kill", [range(0), range(0, 50, 12)], ids=["no put", "some puts"])
def test_rounds_meet_a_put_in_flight_four_times_of_five(answered_before_the_kill: range) -> None:
    moments = Counter[Moment]()
    met = losses = 0
    for kills in range(50):
        this = decide_round(kills, met)
        moments[this.moment] += 1
        losses += this.node_memory_lost
        met += this.moment is Moment.PUT_IN_FLIGHT and kills not in answered_before_the_kill
    assert met >= 40
    assert losses == 10
    assert moments[Moment.AT_REST] + moments[Moment.RECOVERING] >= 4
    assert moments[Moment.RECOVERING] >= 2
