"""The demo's verdict: each thing it must show, when missing, is a fault. The story itself runs in `make demo`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dev.demo.report import Reads, Story, Turn, Visit, decide_figures, find_faults, parse_visit, render_figures

TOKENS = [5, 6, 7]
PAGES = 199


def turn(ttft_s: float, tier: str | None = None, *, variant: int = 0, tokens: list[int] = TOKENS) -> Turn:
    restored = 3184 if tier else 0
    return Turn(variant, ttft_s, restored, {tier: PAGES} if tier else {}, tokens, 0 if tier else PAGES)


def visit(*turns: Turn, dram: int = 0, nvme: int = 0, direct: bool = True) -> Visit:
    read = nvme * 1000
    return Visit(3200, list(turns), Reads({"dram": dram, "nvme": nvme}, read, read if direct else 0))


def good_story() -> Story:
    return Story(
        cold=visit(turn(12.0), turn(11.0), turn(13.0)),
        dram=visit(turn(0.5, "dram"), turn(0.4, "dram", tokens=[5]), dram=2 * PAGES),
        after_kill=visit(turn(0.5, "dram"), dram=PAGES),
        control=visit(turn(12.5, variant=1), turn(11.5, variant=2)),
        nvme=visit(turn(1.0, "nvme"), turn(1.2, "nvme", variant=1), nvme=2 * PAGES),
    )


def test_story_where_all_holds_has_no_faults() -> None:
    assert find_faults(good_story()) == []


def test_figures_are_medians_with_the_tokens_restored() -> None:
    figures = json.loads(decide_figures(good_story()).as_json())
    assert figures == {
        "cold_ttft_s": 12.0,
        "dram_ttft_s": 0.45,
        "nvme_ttft_s": 1.0,
        "control_ttft_s": 12.0,
        "prompt_tokens": 3200,
        "restored_tokens_dram": 3184,
        "restored_tokens_nvme": 3184,
        "restored_tokens_control": 0,
        "identical": True,
    }


OTHER = turn(0.5, "dram", tokens=[5, 6, 8])
SHORT = turn(0.5, "dram", tokens=[5])
BROKEN = [
    pytest.param("cold", visit(turn(12.0, "dram")), "the cold prompt restored 3184 tokens", id="cold restored"),
    pytest.param("cold", visit(replace(turn(12.0), stored_pages=0)), "the cold prompt stored nothing", id="unsaved"),
    pytest.param("control", visit(turn(1.0, "nvme")), "the control restored 3184 tokens", id="control restored"),
    pytest.param("dram", visit(turn(12.0)), "restored 0 tokens", id="nothing restored"),
    pytest.param("dram", visit(turn(0.5, "nvme"), nvme=PAGES), "all should be of dram", id="other tier"),
    pytest.param("dram", visit(turn(0.5, "dram"), dram=PAGES - 1), "the store counted 198", id="unconfirmed"),
    pytest.param("dram", visit(OTHER, dram=PAGES), "answered with other tokens", id="other tokens"),
    pytest.param("dram", visit(SHORT, dram=PAGES), "computed 1 tokens, not 3", id="too few tokens"),
    pytest.param("after_kill", visit(turn(1, "nvme"), nvme=PAGES), "all should be of dram", id="lost in the kill"),
    pytest.param("nvme", visit(turn(1, "dram"), dram=PAGES), "all should be of nvme", id="not pushed out"),
    pytest.param("nvme", visit(turn(1, "nvme"), nvme=PAGES, direct=False), "direct I/O", id="page cache"),
]


@pytest.mark.parametrize(("part", "broken", "said"), BROKEN)
def test_story_that_lacks_one_thing_is_faulted_for_it(part: str, broken: Visit, said: str) -> None:
    faults = find_faults(replace(good_story(), **{part: broken}))
    assert any(said in fault for fault in faults), faults


def test_differing_tokens_are_reported_in_the_figures() -> None:
    story = replace(good_story(), nvme=visit(turn(1.0, "nvme", tokens=[9, 6, 7]), nvme=PAGES))
    figures = decide_figures(story)
    assert not figures.identical
    assert "DIFFERENT" in render_figures(figures)


def test_ratio_below_the_bar_is_marked_missed() -> None:
    slow = replace(good_story(), nvme=visit(turn(2.0, "nvme"), nvme=PAGES))
    text = render_figures(decide_figures(slow))
    assert "6.0x  (bar: 8x, MISSED)" in text
    assert "26.7x  (bar: 8x, met)" in text


def test_line_that_is_not_the_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="not its figures"):
        parse_visit("Traceback (most recent call last):", Reads({}, 0, 0))
