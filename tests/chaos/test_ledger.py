"""The crash test can fail: each kind of broken promise is found, and what was not promised is not missed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from kvtier_client.protocol.messages import Reach, Tier

from tests.chaos.ledger import Ledger, Verdict, is_right, judge_chain
from tests.chaos.rounds import CrashReport, Moment, decide_round
from tests.chaos.workload import SHAPE_BY_NAME, PageKey, PutPlan, decide_chain, payload

SHAPE = SHAPE_BY_NAME["aligned"]
PAGE = SHAPE.pages[0]


def chain_of(blocks: int, reach: Reach, parent: PutPlan | None = None) -> PutPlan:
    hashes = tuple(random.randbytes(32) for _ in range(blocks))
    return PutPlan(SHAPE, parent.blocks[-1] if parent else None, hashes, SHAPE.pages, reach)  # type: ignore[arg-type]


def judge(ledger: Ledger, plan: PutPlan, served: int, tier: Tier = Tier.DRAM) -> Verdict:
    return judge_chain(ledger, SHAPE, plan.blocks, PAGE, [True] * served, [tier] * served)


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
    assert verdict.lost_flushed == verdict.lost_dram == {PageKey("aligned", flushed.blocks[3], PAGE)}


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
    assert len(judge_chain(ledger, SHAPE, plan.blocks, PAGE, [True, False], [Tier.DRAM] * 2).wrong) == 1


@pytest.mark.parametrize("damage", ["flip", "other block", "short", "long"])
def test_bytes_that_are_not_the_pages_own_are_wrong(damage: str) -> None:
    key, other = (
        PageKey("aligned", plan.blocks[0], PAGE) for plan in (chain_of(1, Reach.DRAM), chain_of(1, Reach.DRAM))
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
    first, second = decide_chain(random.Random(1), SHAPE_BY_NAME["two-ranks"], [])
    ledger.expect(first)
    ledger.acknowledge(first, Reach.DRAM)
    assert ledger.parents_for(first.shape) == []
    ledger.expect(second)
    ledger.acknowledge(second, Reach.DRAM)
    assert set(ledger.parents_for(first.shape)) == set(first.blocks)


@pytest.mark.parametrize("figure", ["lost_dram", "lost_flushed", "wrong", "failed_puts", "oom_kills"])
def test_report_with_any_damage_names_the_fault(figure: str) -> None:
    report = CrashReport(seed=1, served=10, kills_with_put_in_flight=4)
    assert report.faults(10, 4) == []
    setattr(report, figure, 1)
    assert report.faults(10, 4) == [f"{figure} is 1, must be 0"]


def test_report_with_too_few_reads_or_puts_in_flight_proves_nothing() -> None:
    report = CrashReport(seed=1, served=9, kills_with_put_in_flight=3)
    assert report.faults(least_served=10, least_in_flight=4) == [
        "served is 9, must be at least 10",
        "kills_with_put_in_flight is 3, must be at least 4",
    ]


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
