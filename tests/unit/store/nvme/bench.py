"""A device mover on a real file and a real chunk, without a process around it."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from kvtier_agent.store.arena_format import PAGE, Geometry, decide_geometry, round_up
from kvtier_agent.store.checksums import payload_digest
from kvtier_agent.store.chunkmap import ChunkMaps
from kvtier_agent.store.nvme import jobs
from kvtier_agent.store.nvme.io_mover import DeviceMover
from kvtier_agent.store.nvme.segments import SegmentId
from kvtier_agent.store.refs import Ref, encode_ref

POOL = "pool-1"
LAYOUT = b"L" * 32
CHUNK = 7
SEGMENT = SegmentId(POOL, 1000, b"n" * 8)
CAPACITY = 16 << 20

Result = TypeVar("Result", bound=msgspec.Struct)


def payload_of(number: int, size: int) -> bytes:
    """Bytes that no other page has."""
    return (hashlib.blake2b(number.to_bytes(8, "little")).digest() * (size // 64 + 1))[:size]


def ref_of(number: int, size: int, slot: int, *, offset: int = 0, generation: int = 1) -> Ref:
    """The page of block `number` of the one chain, in a slot."""
    return Ref(
        LAYOUT,
        hash_of(number),
        hash_of(number - 1) if number else b"",
        payload_digest(payload_of(number, size)),
        generation,
        0,
        1_700_000_000 + number,
        size,
        0,
        0,
        CHUNK,
        slot,
        number,
        1,
        offset,
        0,
    )


def hash_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


class Bench:
    """Slots of 64 KiB and an open device of 16 MiB."""

    def __init__(self, arena: Path, folder: Path, *, slot_bytes: int = 64 << 10, slots: int = 64) -> None:
        self.arena, self.folder = arena, folder
        self.slot_bytes = slot_bytes
        self.maps = ChunkMaps(arena)
        wanted = decide_geometry(slot_bytes, slots * (slot_bytes + 512) + (1 << 16), PAGE)
        self.maps.create(POOL, CHUNK, Geometry(*wanted))
        self.chunk = self.maps.get(POOL, CHUNK)
        self.mover = DeviceMover(arena, folder)
        self._ids = iter(range(1, 1 << 30))

    def run(self, kind: type[msgspec.Struct], *arguments: Any, **named: Any) -> list[Any]:
        """Carry the job out; its results."""
        results: list[Any] = []
        self.mover.carry_out(kind(next(self._ids), *arguments, **named), None, results.append)
        return results

    def open(self, capacity: int = CAPACITY, initialize: str = "ifBlank", expect: bytes = b"") -> jobs.Opened:
        (opened,) = self.run(jobs.Open, capacity, initialize, expect, 0.0)
        assert isinstance(opened, jobs.Opened)
        return opened

    def reopen(self) -> jobs.Opened:
        """As after a restart."""
        self.close()
        self.mover = DeviceMover(self.arena, self.folder)
        return self.open()

    def close(self) -> None:
        if self.mover._opened is not None:
            os.close(self.mover._opened.fd)
            self.mover._opened = None

    def fill(self, number: int, size: int, slot: int, **fields: Any) -> Ref:
        """A page committed in a slot."""
        ref = ref_of(number, size, slot, **fields)
        self.chunk.begin(slot, ref.generation)
        self.chunk.payload(slot, size)[:] = payload_of(number, size)
        self.chunk.clear_padding(ref)
        self.chunk.commit(ref, time.monotonic_ns())
        return ref

    def write(self, refs: list[Ref], offset: int = PAGE, *, segment: SegmentId = SEGMENT, unit: int = 0) -> jobs.Moved:
        packed = b"".join(map(encode_ref, refs))
        (moved,) = self.run(jobs.WriteRun, POOL, unit, segment.sequence, segment.nonce, offset, 500, packed)
        assert isinstance(moved, jobs.Moved)
        return moved

    def init(self, *, segment: SegmentId = SEGMENT, unit: int = 0) -> None:
        self.run(jobs.InitUnit, unit, segment.pool_uid, segment.sequence, segment.nonce)

    def stage(self, *, segment: SegmentId = SEGMENT, unit: int = 0) -> list[jobs.Staged]:
        return self.run(jobs.StageUnit, unit, segment.pool_uid, segment.sequence, segment.nonce)

    def read(self, refs: list[Ref], offset: int, unit: int = 0, *, more: int = 0) -> jobs.Moved:
        """`more`: bytes behind the last page that are read too."""
        packed = b"".join(map(encode_ref, refs))
        size = refs[-1].offset + self.padded(refs[-1].size) - offset + more
        (moved,) = self.run(jobs.Read, POOL, unit, offset, size, packed, time.monotonic_ns())
        assert isinstance(moved, jobs.Moved)
        return moved

    def unit_at(self, unit: int = 0) -> int:
        return self.mover._device.superblock.unit_at(unit)

    @property
    def file(self) -> Path:
        return self.folder / "kvtier.dev"

    def flip(self, at: int, length: int = 1) -> None:
        """Change bytes of the device."""
        with self.file.open("r+b") as file:
            file.seek(at)
            data = bytes(byte ^ 0x40 for byte in file.read(length))
            file.seek(at)
            file.write(data)

    def padded(self, size: int) -> int:
        return round_up(size, PAGE)
