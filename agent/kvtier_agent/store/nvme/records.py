"""Durable records of a device: what was deleted, has expired, or was purged, and must not come back.

A log in one half of the record area; where that is full, what still counts is written to the other half, which then
is the log. Pure: bytes in, values out. `journal` writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ..arena_format import PAGE, round_up
from ..checksums import header_checksum
from .segments import Entries

_HALF: Final = struct.Struct("<8sQQ")
_HALF_MAGIC: Final = b"KVTRECRD"
_HEAD: Final = struct.Struct("<8sQIIQ")
_HEAD_MAGIC: Final = b"KVTRECOR"
PRINT_BYTES: Final = 16
"""A deleted block is named by the first bytes of its hash: another one that begins alike is a miss."""
MAX_PRINTS: Final = 1024
"""In one record."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """Each of these blocks is gone as far as it was written under serials up to its own cutoff."""

    pool: str
    layout: bytes
    cutoff: int
    """The highest of `cutoffs`."""
    prints: bytes
    cutoffs: bytes
    """8 bytes each."""

    def cutoff_of(self) -> dict[bytes, int]:
        """By print."""
        prints = (self.prints[at : at + PRINT_BYTES] for at in range(0, len(self.prints), PRINT_BYTES))
        return dict(zip(prints, np.frombuffer(self.cutoffs, "<u8").tolist(), strict=True))


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """All of the pool that was stored before `before` (unix seconds) and written up to `cutoff` is gone."""

    pool: str
    before: int
    cutoff: int


class Purged(msgspec.Struct, frozen=True, tag="purged"):
    """All of the pool that was written up to `cutoff` is gone."""

    pool: str
    cutoff: int


Record = Deleted | Expired | Purged
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)


def block_print(hash_: bytes) -> bytes:
    """What names a block in a Deleted record."""
    return hash_[:PRINT_BYTES].ljust(PRINT_BYTES, b"\0")


def encode_half_header(epoch: int) -> bytes:
    """First page of a half; the half with the higher epoch is the log."""
    body = _HALF.pack(_HALF_MAGIC, epoch, 0)[:16]
    return (body + struct.pack("<Q", header_checksum(body))).ljust(PAGE, b"\0")


def encode_record(record: Record, counter: int) -> bytes:
    """A record as it stands in the log, a multiple of 4,096."""
    body = _encoder.encode(record)
    head = _HEAD.pack(_HEAD_MAGIC, counter, len(body), 0, 0)[: _HEAD.size - 8]
    check = struct.pack("<Q", header_checksum(head + body))
    data = head + check + body
    return data.ljust(round_up(len(data), PAGE), b"\0")


class Log:
    """What a record area holds."""

    def __init__(self, area: bytes | memoryview) -> None:
        half_bytes = len(area) // 2
        self.half_bytes = half_bytes
        epochs = [_epoch(area[half * half_bytes : half * half_bytes + PAGE]) for half in (0, 1)]
        self.half = 0 if epochs[0] >= epochs[1] else 1
        self.epoch = max(epochs)
        """0: the area was never written."""
        self.records: list[Record] = []
        self.end = PAGE
        """Where the next record goes in the half."""
        self.counter = 0
        """Of the last record."""
        if self.epoch:
            self._read(area[self.half * half_bytes : (self.half + 1) * half_bytes])

    def _read(self, half: bytes | memoryview) -> None:
        while self.end + PAGE <= len(half):
            magic, counter, body_bytes, _, check = _HEAD.unpack_from(half, self.end)
            start = self.end + _HEAD.size
            if magic != _HEAD_MAGIC or counter <= self.counter or start + body_bytes > len(half):
                return
            body = bytes(half[start : start + body_bytes])
            if check != header_checksum(bytes(half[self.end : start - 8]) + body):
                return
            try:
                self.records.append(_decoder.decode(body))
            except msgspec.MsgspecError:
                return
            self.counter = counter
            self.end += round_up(_HEAD.size + body_bytes, PAGE)


def _epoch(page: bytes | memoryview) -> int:
    magic, epoch, check = _HALF.unpack_from(page)
    return epoch if magic == _HALF_MAGIC and check == header_checksum(bytes(page[:16])) else 0


def compact(records: Iterable[Record], oldest: dict[str, int]) -> list[Record]:
    """What of `records` still counts, merged; `oldest`: by pool, the lowest serial that lies on any device.

    A pool without an entry in `oldest` has nothing that could come back.
    """
    purged: dict[str, int] = {}
    expired: list[Expired] = []
    deleted: dict[tuple[str, bytes], dict[bytes, int]] = {}
    for it in records:
        if it.cutoff < oldest.get(it.pool, it.cutoff + 1):
            continue
        if isinstance(it, Purged):
            purged[it.pool] = max(it.cutoff, purged.get(it.pool, 0))
        elif isinstance(it, Expired):
            expired = [one for one in expired if not _covers(it, one)] + [it]
        else:
            known = deleted.setdefault((it.pool, it.layout), {})
            for name, cutoff in it.cutoff_of().items():
                known[name] = max(cutoff, known.get(name, 0))
    left: list[Record] = [Purged(pool, cutoff) for pool, cutoff in purged.items()]
    left += expired
    for (pool, layout), known in deleted.items():
        live = {name: cutoff for name, cutoff in known.items() if cutoff >= oldest[pool]}
        left += _pack(pool, layout, live)
    return left


def _covers(later: Expired, earlier: Expired) -> bool:
    return later.pool == earlier.pool and later.before >= earlier.before and later.cutoff >= earlier.cutoff


def deleted_records(pool: str, layout: bytes, hashes: Iterable[bytes], cutoff: int) -> list[Record]:
    """Records that these blocks are gone, each small enough for the log."""
    return _pack(pool, layout, {block_print(hash_): cutoff for hash_ in hashes})


def _pack(pool: str, layout: bytes, known: dict[bytes, int]) -> list[Record]:
    items = list(known.items())
    parts = (items[start : start + MAX_PRINTS] for start in range(0, len(items), MAX_PRINTS))
    return [
        Deleted(
            pool,
            layout,
            max(cutoff for _, cutoff in part),
            b"".join(name for name, _ in part),
            np.array([cutoff for _, cutoff in part], "<u8").tobytes(),
        )
        for part in parts
    ]


def pools_taken_from(records: Iterable[Record], known: Iterable[Record]) -> set[str]:
    """Pools from which `records` take what `known` leave."""
    before = _cutoffs(known)
    return {key[0] for key, cutoff in _cutoffs(records).items() if cutoff > before.get(key, -1)}


def _cutoffs(records: Iterable[Record]) -> dict[tuple[str, object], int]:
    """The highest cutoff of each pool and what is taken away there."""
    found: dict[tuple[str, object], int] = {}
    for it in records:
        named: dict[tuple[str, object], int] = {}
        if isinstance(it, Deleted):
            named |= {(it.pool, (it.layout, name)): cutoff for name, cutoff in it.cutoff_of().items()}
        else:
            named[it.pool, it.before if isinstance(it, Expired) else None] = it.cutoff
        for key, cutoff in named.items():
            found[key] = max(cutoff, found.get(key, -1))
    return found


class Filter:
    """Which entries of one pool its purges and its age leave; deletions are the index's (`stage_deleted`)."""

    def __init__(self, pool: str, records: Iterable[Record], expired_before: int = 0) -> None:
        """`expired_before`: what the pool's TTL says now, unix seconds."""
        mine = [it for it in records if it.pool == pool]
        self._purged = max((it.cutoff for it in mine if isinstance(it, Purged)), default=0)
        self._expired = [it for it in mine if isinstance(it, Expired)]
        self._before = expired_before

    def keep(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Of each entry, whether it counts."""
        keep = np.asarray((entries["serial"] > self._purged) & (entries["stored_at"] >= self._before))
        for it in self._expired:
            keep &= (entries["serial"] > it.cutoff) | (entries["stored_at"] >= it.before)
        return keep
