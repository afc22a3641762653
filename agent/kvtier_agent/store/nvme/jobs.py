"""What the index process asks of device movers, and what they answer.

Frames of the wire protocol over a socket pair. A mover works on several jobs at once and answers each with exactly one
result that has no `more`. Offsets `at` are on the device.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..jobs import Failed, ForgetChunk, Ready

PART_BYTES: Final = 2 << 20
"""Of entries in one frame, and of bytes read from the record area."""


class TakeBounce(msgspec.Struct, frozen=True, tag="take_bounce"):
    """Map the bounce buffer, whose descriptor lies beside."""

    id: int


class TakeDevice(msgspec.Struct, frozen=True, tag="take_device"):
    """Use the open device whose descriptor lies beside, rather than open the path."""

    id: int


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Open, lock and check the device. The first job of a mover."""

    id: int
    capacity_bytes: int
    initialize: str
    expect_uuid: bytes
    """b"": whatever is there."""
    wait_s: float


class ReadArea(msgspec.Struct, frozen=True, tag="read_area"):
    """Read a part of the device into the answers."""

    id: int
    at: int
    size: int


class WriteArea(msgspec.Struct, frozen=True, tag="write_area"):
    """Write a part of the device, and flush it."""

    id: int
    at: int
    data: bytes


class ListUnits(msgspec.Struct, frozen=True, tag="list_units"):
    """Read every unit's header."""

    id: int


class StageUnit(msgspec.Struct, frozen=True, tag="stage_unit"):
    """Read what a segment holds: its summary, or else all of its unit, every payload checked."""

    id: int
    unit: int
    pool: str
    sequence: int
    nonce: bytes


class InitUnit(msgspec.Struct, frozen=True, tag="init_unit"):
    """Reserve a unit's blocks and write its segment's header."""

    id: int
    unit: int
    pool: str
    sequence: int
    nonce: bytes


class FreeUnits(msgspec.Struct, frozen=True, tag="free_units"):
    """Overwrite the units' headers, flush, and give their blocks back."""

    id: int
    units: list[int]


class Read(msgspec.Struct, frozen=True, tag="read"):
    """One device request: pages (packed refs) that lie in order in a segment, into their slots, checked, committed."""

    id: int
    pool: str
    unit: int
    offset: int
    """In the unit, of the first payload."""
    size: int
    """Of the whole request; what lies behind the last page is read and thrown away."""
    refs: bytes
    begun: int
    """CLOCK_MONOTONIC in nanoseconds, when the slots were taken."""


class WriteRun(msgspec.Struct, frozen=True, tag="write_run"):
    """Write pages (packed refs, of one layout) as one run, from their slots."""

    id: int
    pool: str
    unit: int
    sequence: int
    nonce: bytes
    offset: int
    serial: int
    refs: bytes


class Lift(msgspec.Struct, frozen=True, tag="lift"):
    """Read pages (packed refs, their places in `places`: device offsets) into the bounce buffer, checked."""

    id: int
    bounce: int
    """Where the first goes; each begins at a multiple of 4,096."""
    places: list[int]
    refs: bytes


class Lay(msgspec.Struct, frozen=True, tag="lay"):
    """As WriteRun, from the bounce buffer."""

    id: int
    bounce: int
    pool: str
    unit: int
    sequence: int
    nonce: bytes
    offset: int
    serial: int
    refs: bytes


class Seal(msgspec.Struct, frozen=True, tag="seal"):
    """Write the summary of the runs at these (offset, header bytes) of a unit."""

    id: int
    unit: int
    pool: str
    sequence: int
    nonce: bytes
    runs: list[tuple[int, int]]


class Sync(msgspec.Struct, frozen=True, tag="sync"):
    """Flush the device."""

    id: int


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """See whether the device reads, and with `write` whether it writes."""

    id: int
    write: bool


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The device is in use."""

    id: int
    uuid: bytes
    unit_bytes: int
    units: int
    records_at: int
    records_bytes: int
    units_at: int
    direct: bool
    raw: bool
    writable: bool
    more: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The job is done."""

    id: int
    took_s: float = 0.0
    """On the device, for the estimate of its speed."""
    more: bool = False


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A Read, WriteRun, Lift or Lay is done, but for the pages at these indices."""

    id: int
    bad: list[int]
    """Their checksum does not match. A run with one is not written."""
    failed: list[int]
    """The device did not read them."""
    took_s: float
    more: bool = False


class AreaRead(msgspec.Struct, frozen=True, tag="area_read"):
    """Bytes of the device, in order."""

    id: int
    data: bytes
    more: bool = False


class UnitFound(msgspec.Struct, frozen=True, array_like=True):
    """A unit with a segment."""

    unit: int
    pool: str
    sequence: int
    nonce: bytes


class UnitsListed(msgspec.Struct, frozen=True, tag="units_listed"):
    """Every unit that has a segment."""

    id: int
    units: list[UnitFound]
    foreign: list[int]
    """Units with a segment of another format, or whose header cannot be read: left as they are."""
    damaged: int
    """Units whose header is there and not believed."""
    unread: int
    """Of `foreign`, those whose header cannot be read."""
    more: bool = False


class Staged(msgspec.Struct, frozen=True, tag="staged"):
    """Part of a segment's entries, all of them under one table of layouts."""

    id: int
    layouts: bytes
    entries: bytes
    sealed: bool
    runs: list[tuple[int, int]]
    """Of an unsealed segment (first part only): what Seal wants."""
    end: int
    """Behind the last run."""
    lost: int
    """Pages of intact runs whose payload did not arrive, or was damaged."""
    more: bool = False


Job = (
    TakeBounce
    | TakeDevice
    | Open
    | ReadArea
    | WriteArea
    | ListUnits
    | StageUnit
    | InitUnit
    | FreeUnits
    | Read
    | WriteRun
    | Lift
    | Lay
    | Seal
    | Sync
    | Probe
)
ToMover = Job | ForgetChunk
Result = Opened | Done | Failed | Moved | AreaRead | UnitsListed | Staged
FromMover = Ready | Result
