"""What the demo found: figures from the pods' turns, the checks on them, the printed lines. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

BAR = 8.0
"""How many times sooner the first token of a restored prompt is meant to come."""


@dataclass(frozen=True)
class Turn:
    """One prompt's run in a pod, as dev/demo/engine.py printed it."""

    variant: int
    ttft_s: float
    restored_tokens: int
    tiers: dict[str, int]
    """Pages restored, by the tier that the replies named."""
    tokens: list[int]
    stored_pages: int


@dataclass(frozen=True)
class Reads:
    """How far the store's own counters moved while a pod ran."""

    pages: dict[str, int]
    """Pages read, by tier."""
    nvme_bytes: int
    nvme_direct_bytes: int


@dataclass(frozen=True)
class Visit:
    """A pod: its turns, and what the store counted meanwhile."""

    prompt_tokens: int
    turns: list[Turn]
    reads: Reads

    def of(self, variant: int) -> list[Turn]:
        """The turns of one variant of the prompt."""
        return [turn for turn in self.turns if turn.variant == variant]


def parse_visit(line: str, reads: Reads) -> Visit:
    """The visit that a pod's last line describes. Raises ValueError when it describes none."""
    try:
        said: dict[str, Any] = json.loads(line)
        return Visit(said["prompt_tokens"], [Turn(**turn) for turn in said["turns"]], reads)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the engine's last line is not its figures: {line[:200]!r}") from error


@dataclass(frozen=True)
class Figures:
    """.out/demo.json"""

    cold_ttft_s: float
    dram_ttft_s: float
    nvme_ttft_s: float
    control_ttft_s: float
    prompt_tokens: int
    restored_tokens_dram: int
    restored_tokens_nvme: int
    restored_tokens_control: int
    identical: bool

    def as_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class Story:
    """The demo's pods in the order in which they ran."""

    cold: Visit
    dram: Visit
    after_kill: Visit
    control: Visit
    nvme: Visit


def decide_figures(story: Story) -> Figures:
    """The figures of the story: medians over the turns of the prompt."""
    cold, dram, nvme = story.cold.of(0), story.dram.of(0), story.nvme.of(0)
    return Figures(
        cold_ttft_s=_ttft(cold),
        dram_ttft_s=_ttft(dram),
        nvme_ttft_s=_ttft(nvme),
        control_ttft_s=_ttft(story.control.turns),
        prompt_tokens=story.cold.prompt_tokens,
        restored_tokens_dram=min(turn.restored_tokens for turn in dram),
        restored_tokens_nvme=min(turn.restored_tokens for turn in nvme),
        restored_tokens_control=max(turn.restored_tokens for turn in story.control.turns),
        identical=not any(find_other_tokens(story.cold, warm) for warm in (story.dram, story.after_kill, story.nvme)),
    )


def find_faults(story: Story) -> list[str]:
    """What the story failed to show, a sentence each; empty when all of it held."""
    faults = [
        *_restored_something("the cold prompt", story.cold),
        *_restored_something("the control", story.control),
        *_stored_nothing("the cold prompt", story.cold),
        *_stored_nothing("another prompt", story.control),
    ]
    for name, tier, visit in (
        ("the second pod", "dram", story.dram),
        ("the pod after the kill", "dram", story.after_kill),
        ("the pod after the other prompts", "nvme", story.nvme),
    ):
        faults += _not_from(tier, name, visit)
        faults += _unconfirmed(name, visit)
        faults += [f"{name} {fault}" for fault in find_other_tokens(story.cold, visit)]
    return faults


def find_other_tokens(cold: Visit, warm: Visit) -> list[str]:
    """How the warm turns' tokens differ from the cold ones."""
    expected = max((turn.tokens for turn in cold.of(0)), key=len)
    longest = max(len(turn.tokens) for turn in warm.of(0))
    if longest < len(expected):
        return [f"computed {longest} tokens, not {len(expected)}"]
    return [
        f"answered with other tokens: {turn.tokens[:8]} ..., cold {expected[:8]} ..."
        for turn in warm.of(0)
        if turn.tokens != expected[: len(turn.tokens)]
    ]


def _restored_something(name: str, visit: Visit) -> list[str]:
    return [f"{name} restored {turn.restored_tokens} tokens, not 0" for turn in visit.turns if turn.restored_tokens]


def _stored_nothing(name: str, visit: Visit) -> list[str]:
    last = {turn.variant: turn for turn in visit.turns}
    return [f"{name} stored nothing" for turn in last.values() if not turn.stored_pages]


def _not_from(tier: str, name: str, visit: Visit) -> list[str]:
    """The prompt's turns that did not restore from `tier` alone."""
    wrong = [turn for turn in visit.of(0) if not turn.restored_tokens or set(turn.tiers) != {tier}]
    return [
        f"{name} restored {turn.restored_tokens} tokens, pages by tier {turn.tiers or 'none'}; all should be of {tier}"
        for turn in wrong
    ]


def _unconfirmed(name: str, visit: Visit) -> list[str]:
    """Tiers that the replies named more often than the store counted reads, and reads that were not direct."""
    named = _pages_by_tier(visit.turns)
    faults = [
        f"{name} was told of {count} pages from {tier}, and the store counted {visit.reads.pages.get(tier, 0)}"
        for tier, count in named.items()
        if visit.reads.pages.get(tier, 0) < count
    ]
    if named.get("nvme") and visit.reads.nvme_direct_bytes < visit.reads.nvme_bytes:
        direct = f"{visit.reads.nvme_direct_bytes} of {visit.reads.nvme_bytes}"
        faults.append(f"{name}: only {direct} bytes from nvme were read with direct I/O")
    return faults


def _pages_by_tier(turns: list[Turn]) -> dict[str, int]:
    total: dict[str, int] = {}
    for turn in turns:
        for tier, count in turn.tiers.items():
            total[tier] = total.get(tier, 0) + count
    return total


def _ttft(turns: list[Turn]) -> float:
    return round(median(turn.ttft_s for turn in turns), 4)


def render_visit(visit: Visit) -> str:
    """One line: the prompt's time to first token, what was restored and from where."""
    turns = visit.of(0) or visit.turns
    restored = min(turn.restored_tokens for turn in turns)
    tiers = "+".join(sorted(_pages_by_tier(turns))) or "nowhere"
    times = ", ".join(f"{turn.ttft_s:.2f}" for turn in turns)
    return (
        f"first token after {_ttft(turns):.2f} s (median of {times}); "
        f"{restored} of {visit.prompt_tokens} tokens restored{f' from {tiers}' if restored else ''}"
    )


def render_figures(figures: Figures) -> str:
    """The closing table, with each ratio beside the bar."""
    rows = [("cold", figures.cold_ttft_s, 0), ("dram", figures.dram_ttft_s, figures.restored_tokens_dram)]
    rows += [("nvme", figures.nvme_ttft_s, figures.restored_tokens_nvme)]
    rows += [("control", figures.control_ttft_s, figures.restored_tokens_control)]
    lines = [f"{'':10}{'TTFT (s)':>10}{'restored':>16}{'vs cold':>12}"]
    for name, ttft, restored in rows:
        ratio = figures.cold_ttft_s / ttft
        mark = "" if name not in ("dram", "nvme") else f"  (bar: {BAR:.0f}x, {'met' if ratio >= BAR else 'MISSED'})"
        lines.append(f"{name:10}{ttft:10.2f}{f'{restored}/{figures.prompt_tokens}':>16}{f'{ratio:.1f}x':>12}{mark}")
    lines.append(f"64 greedy tokens cold and restored: {'identical' if figures.identical else 'DIFFERENT'}")
    return "\n".join(lines)
