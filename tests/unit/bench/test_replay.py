"""Traces, the offline optimum, and the command that replays them."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from kvtier_bench.cli import main
from kvtier_bench.replay.optimum import optimum_blocks
from kvtier_bench.replay.policies import Cache, hit_blocks
from kvtier_bench.replay.trace import Trace, TraceError, read_trace
from kvtier_bench.workload import chain_hashes


def trace_of(*requests: list[int]) -> Trace:
    return Trace([*requests], len(set(itertools.chain(*requests))), sum(map(len, requests)))


def write(path: Path, *requests: list[int | str]) -> Path:
    path.write_text("".join(json.dumps({"timestamp": 1, "hash_ids": ids}) + "\n" for ids in requests))
    return path


def best_by_trying(trace: Trace, capacity: int) -> int:
    """The most that any choice of what to keep finds: every prefix-closed set of blocks, request by request."""
    parents: dict[int, int | None] = {}
    for chain in trace.requests:
        parents.update(zip(chain, [None, *chain], strict=False))
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for chain in trace.requests:
        after: dict[frozenset[int], int] = {}
        for held, found in states.items():
            known = len(list(itertools.takewhile(held.__contains__, chain)))
            everything = held | set(chain)
            for size in range(min(capacity, len(everything)) + 1):
                for kept in map(frozenset, itertools.combinations(sorted(everything), size)):
                    if all(parents[block] is None or parents[block] in kept for block in kept):
                        after[kept] = max(after.get(kept, 0), found + known)
        states = after
    return max(states.values())


@pytest.mark.parametrize("seed", range(12))
def test_optimum_is_what_the_best_choice_finds(seed: int) -> None:
    dice = random.Random(seed)
    chains = [[0, 1, 2], [0, 1, 3], [0, 4], [5, 6], [5, 7]]
    trace = trace_of(*(dice.choice(chains)[: dice.randint(1, 3)] for _ in range(7)))
    for capacity in (1, 2, 3, 4):
        assert optimum_blocks(trace, capacity) == best_by_trying(trace, capacity)


def test_lru_evicts_the_leaf_used_longest_ago() -> None:
    assert hit_blocks(trace_of([0, 1], [2], [0, 3], [0, 1]), "lru", 3) == 1 + 1
    assert hit_blocks(trace_of([0, 1], [2], [0, 3], [0, 1]), "lru", 4) == 1 + 2


@pytest.mark.parametrize(
    ("requests", "hits"),
    [
        ([(1, 4), (1, 8)], [0, 4]),
        ([(1, 4), (2, 4), (3, 4), (1, 4)], [0, 0, 0, 2]),
        ([(1, 6), (2, 6), (1, 6)], [0, 0, 4]),
        ([(1, 30), (1, 30)], [0, 10]),
        ([(1, 8), (1, 4), (1, 8)], [0, 4, 8]),
    ],
    ids=["grows", "coldest loses its end", "two share", "larger than the cache", "a shorter prompt"],
)
def test_lru_evicts_the_end_of_the_coldest_chain(requests: list[tuple[int, int]], hits: list[int]) -> None:
    cache = Cache("lru", 10)
    found = [
        cache.request(chain_hashes(chain, 30)[:blocks], float(now)) for now, (chain, blocks) in enumerate(requests)
    ]
    assert found == hits


@pytest.mark.parametrize("policy", ["default", "lru"])
def test_policy_with_room_for_all_finds_every_repeated_block(policy: str) -> None:
    assert hit_blocks(trace_of([0, 1, 2], [0, 1, 3], [0, 1, 2], [0, 1, 3]), policy, 100) == 2 + 3 + 3


def test_request_longer_than_the_cache_leaves_its_beginning_there() -> None:
    trace = trace_of(list(range(10)), list(range(10)))
    assert hit_blocks(trace, "lru", 4) == optimum_blocks(trace, 4) == 4


def test_ids_become_block_numbers_in_order(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "trace", [46, 7], [46, "x"], []))
    assert trace == Trace([[0, 1], [0, 2], []], 3, 4)


@pytest.mark.parametrize(
    ("requests", "complaint"),
    [
        ([[1, 2], [3, 2]], r":2: id 2 stands behind another id"),
        ([[1, 2, 1]], r":1: id 1 stands behind another id"),
        ([[1.5]], r":1: expected an object like"),
        ([[]], r"no request asks for a block"),
    ],
)
def test_trace_that_is_none_is_refused_with_its_line(
    tmp_path: Path, requests: list[list[int | str]], complaint: str
) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_trace(write(tmp_path / "trace", *requests))


def test_command_writes_ratios_of_policies_and_optimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write(tmp_path / "trace", [1, 2], [3], [1, 2], [3])
    figures = tmp_path / "figures.json"
    assert main(["replay", str(trace), "--capacity", "2,3", "--policy", "all", "--json", str(figures)]) == 0
    ratios = json.loads(figures.read_text())
    assert list(ratios) == ["default", "lru", "optimum"]
    assert ratios["optimum"] == {"2": 2 / 6, "3": 3 / 6}
    assert ratios["lru"]["3"] == 3 / 6
    assert "6 blocks asked for, 3 different" in capsys.readouterr().out


def test_command_says_what_is_wrong_with_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
