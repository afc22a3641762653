"""Where runs go. Devices are stood in for by their name and whether they take writes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.nvme.cleaning import decide_keep, decide_merge, is_fragmented, pieces_of
from kvtier_agent.store.nvme.placement import (
    MAX_RESERVE_BYTES,
    STRIPE_BYTES,
    Budget,
    Segment,
    SegmentState,
    Space,
    Spot,
    Want,
)
from kvtier_agent.store.nvme.segments import HEADER_BYTES, RunSizes, SegmentId, run_bytes, run_places, summary_bytes

MIB = 1 << 20
UNIT = 64 * MIB
LAYOUT = b"L" * 32
AMPLE = Budget(1 << 40, 1 << 40)
NONE = Budget(0, 1 << 40)


@dataclass
class World:
    """A pool's space, and chains that are written into it."""

    names: tuple[str, ...] = ("a",)
    budget: Budget = AMPLE
    space: Space = field(default_factory=Space)
    chains: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By chain, segment and offset of each of its pages."""
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """Segment, start and stop."""
    made: int = 0

    def __post_init__(self) -> None:
        self.devices = [
            cast("Any", SimpleNamespace(name=name, health=SimpleNamespace(writable=True), free_units=9))
            for name in self.names
        ]

    def segment(self, device: Any) -> Segment:
        self.made += 1
        made = Segment(self.made, device, self.made, SegmentId("p", self.made, b"n" * 8), UNIT)
        made.state = SegmentState.OPEN
        self.space.segments[made.number] = made
        self.space.open[device.name] = made
        return made

    def put(self, chain: int, sizes: list[int]) -> list[Spot]:
        """Append pages to a chain, as the writer does."""
        spots = []
        while sizes:
            pages = self.chains.setdefault(chain, [])
            want = Want(RunSizes(sizes), LAYOUT, pages[-1:])
            spot = self.space.find_reserved(want, self.budget)
            if spot is None:
                device = self.space.device_for(want, self.devices)
                assert device is not None
                striped = len(self.devices) > 1
                spot = self.space.on_top(want, device, self.budget, striped=striped)
                if spot is None:
                    self.segment(device)
                    spot = self.space.on_top(want, device, self.budget, striped=striped)
            assert spot is not None
            places = run_places(spot.offset, sizes[: spot.pages])
            self.space.place(spot, want, self.budget, places[-1:])
            pages += [(spot.segment.number, at) for at in places]
            self.runs.append((spot.segment.number, spot.offset, spot.offset + spot.run_bytes))
            sizes = sizes[spot.pages :]
            spots.append(spot)
        return spots

    def pieces(self, chain: int, size: int) -> int:
        return len(pieces_of([(*place, size) for place in self.chains[chain]]))

    def check(self) -> None:
        """No run lies on another, on a header or on a summary."""
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in self.runs:
            by_segment.setdefault(number, []).append((start, stop))
        for number, runs in by_segment.items():
            segment = self.space.segments[number]
            end = HEADER_BYTES
            for start, stop in sorted(runs):
                assert start >= end
                end = stop
            assert end <= UNIT - summary_bytes(segment.entries, len(segment.layouts))


def test_run_takes_the_pages_that_fit() -> None:
    assert RunSizes([PAGE] * 10).fit(run_bytes([PAGE] * 7)) == 7
    assert RunSizes([PAGE] * 10).fit(run_bytes([PAGE] * 7) - 1) == 6
    assert RunSizes([PAGE] * 5000).fit(1 << 40) == 1000
    assert RunSizes([MIB] * 10).fit(1 << 40) == 8
    assert RunSizes([32 * MIB] * 2).fit(1 << 40) == 1
    assert RunSizes([MIB]).fit(PAGE) == 0


def test_chains_that_grow_by_turns_lie_in_few_pieces() -> None:
    world = World()
    for _ in range(32):
        for chain in range(64):
            world.put(chain, [64 << 10] * 8)
    world.check()
    assert max(world.pieces(chain, 64 << 10) for chain in range(64)) <= 3
    assert sum(world.pieces(chain, 64 << 10) for chain in range(64)) <= 64 * 2.5


def test_without_space_ahead_every_turn_is_a_piece() -> None:
    """What the reservations are for."""
    world = World(budget=NONE)
    for _ in range(8):
        for chain in range(16):
            world.put(chain, [64 << 10] * 8)
    world.check()
    assert min(world.pieces(chain, 64 << 10) for chain in range(16)) == 8
    assert world.space.reserved_bytes == 0


def test_chain_put_at_once_is_contiguous_in_each_segment() -> None:
    world = World()
    world.put(0, [MIB] * 256)
    world.check()
    assert world.pieces(0, MIB) <= 256 * MIB // (UNIT - 8 * MIB) + 2


def test_long_chain_alternates_over_devices() -> None:
    world = World(("a", "b"))
    spots = world.put(0, [MIB] * 128)
    world.check()
    names = [spot.segment.device.name for spot in spots]
    by_name = {name: sum(it.run_bytes for it in spots if it.segment.device.name == name) for name in ("a", "b")}
    assert abs(by_name["a"] - by_name["b"]) <= STRIPE_BYTES + MIB
    switches = sum(left != right for left, right in pairwise(names))
    assert 5 <= switches <= 10


def test_short_chains_go_to_devices_in_turn() -> None:
    world = World(("a", "b"))
    names = [world.put(chain, [PAGE])[0].segment.device.name for chain in range(10)]
    assert sorted(names) == ["a"] * 5 + ["b"] * 5


def test_reservations_are_at_most_half_of_what_is_free() -> None:
    world = World(budget=Budget(40 * MIB, 100 * MIB))
    for chain in range(64):
        world.put(chain, [64 << 10] * 8)
        assert world.space.reserved_bytes <= 20 * MIB
    world.budget = Budget(4 * MIB, 100 * MIB)
    world.put(99, [PAGE])
    assert world.space.reserved_bytes == 0
    world.check()


def test_least_recently_used_reservation_lapses_first() -> None:
    world = World()
    for chain in range(4):
        world.put(chain, [512 << 10])
    world.put(0, [512 << 10])
    world.budget = Budget(2 * (world.space.reserved_bytes - MIB), 1)
    world.put(9, [PAGE])
    assert world.pieces(0, 512 << 10) == 1
    world.put(0, [512 << 10])
    assert world.pieces(0, 512 << 10) == 1
    world.put(1, [512 << 10])
    assert world.pieces(1, 512 << 10) == 2


def test_hole_of_a_lapsed_reservation_takes_small_chains() -> None:
    world = World()
    world.put(0, [512 << 10])
    world.put(1, [512 << 10])
    (first,) = world.space.open_segments()
    world.space.lapse_all(first)
    (spot,) = world.put(2, [PAGE] * 3)
    assert spot.offset == world.runs[0][2]
    world.check()


def test_last_reservation_that_lapses_gives_its_space_back() -> None:
    world = World()
    world.put(0, [512 << 10])
    (segment,) = world.space.open_segments()
    assert segment.top > world.runs[0][2]
    world.space.lapse_all(segment)
    assert (segment.top, segment.holes) == (world.runs[0][2], [])


def test_sealed_segment_takes_no_more_runs() -> None:
    world = World()
    world.put(0, [PAGE])
    (segment,) = world.space.open_segments()
    segment.state = SegmentState.SEALED
    world.space.forget(segment)
    world.put(0, [PAGE])
    assert world.chains[0][1][0] != segment.number


@pytest.mark.parametrize("seed", range(8))
def test_random_growth_never_overlaps(seed: int) -> None:
    rng = random.Random(seed)
    world = World(("a", "b")[: 1 + seed % 2])
    for _ in range(400):
        world.budget = Budget(rng.choice([0, 10 * MIB, 1 << 40]), 1)
        size = rng.choice([100, PAGE, 5000, 64 << 10, MIB])
        world.put(rng.randrange(30), [size] * rng.randrange(1, 40))
    world.check()
    assert world.space.reserved_bytes <= 30 * 2 * MAX_RESERVE_BYTES


def test_chain_is_fragmented_beyond_two_runs_a_window() -> None:
    assert not is_fragmented(2, MIB)
    assert is_fragmented(3, MIB)
    assert not is_fragmented(4, 17 * MIB)
    assert is_fragmented(5, 17 * MIB)


def test_pieces_go_across_run_headers_only() -> None:
    places = [(1, 4096, PAGE), (1, 8192, PAGE), (1, 8192 + 2 * PAGE, PAGE), (1, 200_000 * PAGE, PAGE), (2, 4096, PAGE)]
    assert [(it.start, it.stop) for it in pieces_of(places)] == [(0, 3), (3, 4), (4, 5)]
    assert [(it.start, it.stop) for it in pieces_of([*places[:1], None, *places[1:]])] == [
        (0, 1),
        (2, 4),
        (4, 5),
        (5, 6),
    ]


def test_merge_joins_the_smallest_neighbours_until_the_pieces_are_few() -> None:
    small = [(1, (2 * index + 1) * MIB, 512 << 10) for index in range(4)]
    large = [(2, index * MIB, MIB) for index in range(6)]
    assert decide_merge([*small, *large], 1 << 40) == [(0, 4)]
    assert decide_merge([*small, *large], MIB) == []
    assert decide_merge(large, 1 << 40) == []
    assert decide_merge([*small, None, *small], 1 << 40) == [(0, 4), (5, 9)]


def test_best_pages_of_a_unit_are_kept_within_the_limit() -> None:
    worths = [0.1, 5.0, 3.0, 0.2, 4.0]
    assert decide_keep([PAGE] * 5, worths, 1.0, 2 * PAGE) == [1, 4]
    assert decide_keep([PAGE] * 5, worths, 3.5, 100 * PAGE) == [1, 4]
    assert decide_keep([PAGE] * 5, worths, 9.0, 100 * PAGE) == []
