"""What a device may hold after a power cut, made from a recording. Pure but for the file that it fills.

What was flushed before the cut is there. Every other write that had begun is there, absent, or torn at sectors of
512 bytes, and such writes may have arrived in any order, whatever was answered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from .recording import Recording, Write

SECTOR: Final = 512
_ZEROS: Final = bytes(1 << 20)


class Medium(Protocol):
    """Where the content is made: a file, or memory in tests."""

    def write_at(self, offset: int, data: memoryview) -> None:
        """Replace the bytes from `offset` on."""


class Fragment(NamedTuple):
    """A part of a write that arrived: bytes `start` to `stop` of it."""

    write: Write
    start: int
    stop: int


class CutPlan(NamedTuple):
    """What is to be applied, in this order, to the content that the recording began with."""

    durable: list[Write]
    fragments: list[Fragment]


def is_durable(write: Write, flushed_until: int, cut: int) -> bool:
    """Whether a write survives a cut for certain."""
    if write.done is None or write.done >= cut:
        return False
    return write.durable or write.done < flushed_until


def decide_cut(recording: Recording, cut: int, rng: random.Random) -> CutPlan:
    """One of the possible outcomes of a power cut before the record at `cut`."""
    flushed_until = recording.flushed_until(cut)
    durable: list[Write] = []
    pending: list[Write] = []
    for write in recording.begun_before(cut):
        (durable if is_durable(write, flushed_until, cut) else pending).append(write)
    rng.shuffle(pending)
    return CutPlan(durable, [fragment for write in pending for fragment in decide_fragments(write, rng)])


def decide_fragments(write: Write, rng: random.Random) -> Iterator[Fragment]:
    """The parts of an unflushed write that arrived: all, none, a head, a tail, or sectors at random."""
    sectors = -(-write.length // SECTOR)
    fate = rng.choice(("all", "none", "head", "tail", "scattered"))
    if fate == "all":
        yield Fragment(write, 0, write.length)
    elif fate == "head":
        yield Fragment(write, 0, min(rng.randint(1, sectors) * SECTOR, write.length))
    elif fate == "tail":
        yield Fragment(write, rng.randrange(sectors) * SECTOR, write.length)
    elif fate == "scattered":
        at = 0
        while at < sectors:  # stretches of random lengths, every second one missing
            absent, present = (1 + int(rng.expovariate(8 / sectors)) for _ in range(2))
            start, stop = at + absent, min(at + absent + present, sectors)
            if start < stop:
                yield Fragment(write, start * SECTOR, min(stop * SECTOR, write.length))
            at += absent + present


def apply_cut(plan: CutPlan, medium: Medium) -> None:
    """Write the plan's content over what the recording began with."""
    for write in plan.durable:
        _apply(Fragment(write, 0, write.length), medium)
    for fragment in plan.fragments:
        _apply(fragment, medium)


def _apply(fragment: Fragment, medium: Medium) -> None:
    write, start, stop = fragment
    if write.data is not None:
        medium.write_at(write.offset + start, write.data[start:stop])
        return
    for at in range(start, stop, len(_ZEROS)):
        medium.write_at(write.offset + at, memoryview(_ZEROS)[: min(len(_ZEROS), stop - at)])
