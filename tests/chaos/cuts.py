"""Power cuts: a device's content as a cut may have left it, a store started on it, and what it must still serve.

The device is a disk whose every write and flush was recorded below the system call while a store was under load, from
before its start on. The store has it raw, or a folder on its ext4.
"""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from kvtier_client.protocol.messages import Reach

from dev.faults.device import DISK_FILE, FaultyFolder, open_disk
from dev.faults.filesystems import make_ext4, mounted
from dev.faults.place import loop_device, open_place
from dev.faults.recording import Recording
from dev.faults.replay import apply_cut, decide_cut
from tests.chaos.ledger import Ledger, draw
from tests.chaos.report import CrashReport
from tests.chaos.rounds import count
from tests.chaos.scene import keep_log, open_scene
from tests.chaos.workload import BlockKey, PageKey, PutPlan

DISK_BYTES: Final = 768 << 20
NVME_BYTES: Final = 512 << 20
DRAM_BYTES: Final = 512 << 20
RAW_SHARE: Final = 0.5
"""How often the store has the disk itself."""
RECORDINGS_PER_DISK: Final = 4
"""Each goes on with what a cut of the one before left; more would fill the disk."""
CUTS_PER_RECORDING: Final = 10
LEAST_PUTS: Final = 15
MOST_PUTS: Final = 40
PAGES_PER_CUT: Final = 500
"""Drawn evenly; what was acknowledged last before the cut is read on top."""
LAST_ACKNOWLEDGED: Final = 20


class Kind(Enum):
    """What a mark in a recording stands for."""

    END = auto()
    STORED = auto()
    DELETING = auto()
    DELETED = auto()


Event = tuple[Kind, frozenset[PageKey] | frozenset[BlockKey]]
"""A mark, and the pages or blocks that it is about."""


@dataclass
class Marks:
    """What was acknowledged while a disk was recorded, by the mark that it left there. Thread-safe; a Witness."""

    device: FaultyFolder
    events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def stored(self, plan: PutPlan, reach: Reach) -> None:
        """Note a put that was answered, if it must survive."""
        if reach is Reach.FLUSHED:
            self._note(Kind.STORED, frozenset(plan.page_keys()))

    def deleting(self, blocks: set[BlockKey]) -> None:
        """Note what may be gone from now on."""
        self._note(Kind.DELETING, frozenset(blocks))

    def deleted(self, blocks: set[BlockKey]) -> None:
        """Note what must be gone from now on."""
        self._note(Kind.DELETED, frozenset(blocks))

    def end(self) -> None:
        """Note that the store is about to be killed."""
        self._note(Kind.END, frozenset())

    def _note(self, kind: Kind, about: frozenset[PageKey] | frozenset[BlockKey]) -> None:
        with self._lock:
            self.device.mark(len(self.events))
            self.events.append((kind, about))


@dataclass(frozen=True)
class Recorded:
    """What happened on the disk, beginning with the content of `base`, and what was promised meanwhile."""

    base: Path
    raw: bool
    recording: Recording
    events: list[Event]
    ledger: Ledger
    """All blocks that were ever sent."""
    promised_before: frozenset[PageKey]
    deleted_before: frozenset[BlockKey]

    def ledger_at(self, cut: int) -> Ledger:
        """What the store has promised by then, from nvme alone."""
        promised, deleted, doomed = set(self.promised_before), set(self.deleted_before), set[BlockKey]()
        for kind, about in self._events_before(cut):
            if kind is Kind.STORED:
                promised |= {key for key in about if isinstance(key, PageKey)}
            else:
                blocks = {key for key in about if isinstance(key, BlockKey)}
                doomed |= blocks
                deleted |= blocks if kind is Kind.DELETED else set()
        return self.ledger.fork({key for key in promised if key.block not in doomed}, deleted)

    def last_acknowledged(self, cut: int) -> set[BlockKey]:
        """The blocks whose acknowledgement was the latest by then."""
        last = self._events_before(cut)[-LAST_ACKNOWLEDGED:]
        return {key.block if isinstance(key, PageKey) else key for _, about in last for key in about}

    def _events_before(self, cut: int) -> list[Event]:
        return [self.events[number] for number in sorted(self.recording.marks_before(cut))]

    def random_cut(self, rng: random.Random) -> int:
        """A point between the store's start and its end."""
        end = next(number for number, (kind, _) in enumerate(self.events) if kind is Kind.END)
        return rng.randrange(1, self.recording.marks[end] + 1)


class FileMedium:
    """A file whose content a replay makes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")

    def write_at(self, offset: int, data: memoryview) -> None:
        """Replace the bytes from `offset` on."""
        self._file.seek(offset)
        self._file.write(data)

    def close(self) -> None:
        """Hand over what is buffered."""
        self._file.close()


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file, holes as holes."""
    subprocess.run(["cp", "--sparse=always", str(source), str(target)], check=True)


class Medium(NamedTuple):
    """The store's nvme tier on a disk: exactly one of the two."""

    media: Path | None
    raw: Path | None


@contextmanager
def medium_on(disk: Path, place: Path, *, raw: bool) -> Iterator[Medium]:
    """The disk itself, or the store's folder on its file system."""
    if raw:
        yield Medium(None, disk)
    else:
        with mounted(disk, place / f"fs-{disk.name}") as folder:
            yield Medium(folder / "media", None)


def record_load(place: Path, base: Path, ledger: Ledger, rng: random.Random, *, raw: bool) -> Recorded:
    """Record a store's life under load, from its start on the content of `base` to a kill."""
    promised_before, deleted_before = frozenset(ledger.flushed_pages()), frozenset(ledger.deleted())
    with FaultyFolder(place) as device:
        copy_sparse(base, device.backing / DISK_FILE)
        marks = Marks(device)
        with open_disk(device, DISK_BYTES) as disk:
            device.record(DISK_FILE)
            with (
                medium_on(disk, place, raw=raw) as medium,
                open_scene(rng, DRAM_BYTES, NVME_BYTES, *medium, ledger=ledger, witness=marks) as scene,
            ):
                scene.start()
                scene.store_puts(rng.randint(LEAST_PUTS, MOST_PUTS))
                marks.end()
                scene.kill()
                scene.bury()
        (device.backing / DISK_FILE).unlink()
        return Recorded(base, raw, device.stop_recording(), marks.events, ledger, promised_before, deleted_before)


def make_content(recorded: Recorded, cut: int, image: Path, rng: random.Random) -> None:
    """Fill `image` with one possible content of the disk after a cut at this point."""
    copy_sparse(recorded.base, image)
    medium = FileMedium(image)
    apply_cut(decide_cut(recorded.recording, cut, rng), medium)
    medium.close()


def try_cut(recorded: Recorded, cut: int, image: Path, rng: random.Random, report: CrashReport) -> list[str]:
    """Start a store on what a cut at this point left in `image`, read, and add to `report`; what was wrong."""
    make_content(recorded, cut, image, rng)
    with (
        loop_device(image) as disk,
        medium_on(disk, image.parent, raw=recorded.raw) as medium,
        open_scene(rng, DRAM_BYTES, NVME_BYTES, *medium, ledger=recorded.ledger_at(cut)) as scene,
    ):
        scene.start()
        stretches, last = scene.ledger.stretches(), recorded.last_acknowledged(cut)
        drawn = scene.read_back(draw(stretches, PAGES_PER_CUT, rng))
        report.drawn += drawn.served
        drawn.add(scene.read_back([it for it in stretches if not last.isdisjoint(it.blocks)]))
        count(drawn, report)
        report.failed_puts += scene.store_flushed()
        report.power_cuts += 1
        if drawn.wrong or drawn.lost_flushed:
            keep_log(scene, report.seed)
        scene.kill()
        scene.bury()
    return drawn.wrong


def run_cuts(cuts: int, rng: random.Random, report: CrashReport, say: Callable[[str], None]) -> None:
    """So many power cuts, of as many recordings as that takes; `report` is true at every moment.

    Raises FaultsUnavailable, CgroupUnavailable, StoreFailed, TimeoutError.
    """
    while report.power_cuts < cuts:
        with open_place() as place:
            base, raw = place / "base", rng.random() < RAW_SHARE
            make_base(base, raw=raw)
            ledger = Ledger()
            for _ in range(RECORDINGS_PER_DISK):
                if report.power_cuts < cuts:
                    ledger = run_recording(place, base, ledger, cuts, rng, report, say, raw=raw)


def make_base(base: Path, *, raw: bool) -> None:
    """A blank disk, or one with an empty file system."""
    with base.open("wb") as file:
        file.truncate(DISK_BYTES)
    if raw:
        return
    with loop_device(base) as disk:
        make_ext4(disk)


def run_recording(
    place: Path,
    base: Path,
    ledger: Ledger,
    cuts: int,
    rng: random.Random,
    report: CrashReport,
    say: Callable[[str], None],
    *,
    raw: bool,
) -> Ledger:
    """Record once, try cuts of it, and leave in `base` what the last of them left; returns what is promised of that."""
    recorded = record_load(place, base, ledger, rng, raw=raw)
    image = place / "image"
    for _ in range(min(CUTS_PER_RECORDING, cuts - report.power_cuts)):
        cut = recorded.random_cut(rng)
        before = CrashReport(lost_flushed=report.lost_flushed, served=report.served)
        wrong = try_cut(recorded, cut, image, rng, report)
        say(
            f"power cut {report.power_cuts}/{cuts} of a {'disk' if raw else 'folder'}, "
            f"at {cut} of {recorded.recording.length} records: "
            f"{report.served - before.served} pages read right, lost {report.lost_flushed - before.lost_flushed} "
            f"flushed, wrong {len(wrong)}"
        )
        for line in wrong[:5]:
            say(f"  wrong: {line}")
    report.written_bytes += sum(write.length for write in recorded.recording.writes)
    image.replace(base)
    return recorded.ledger_at(cut)
