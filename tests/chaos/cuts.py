"""Power cuts: a device's content as a cut may have left it, a store started on it, and what it must still serve.

The device is a disk whose every write and flush was recorded below the system call while a store was under load, from
before its start on. On it lies an ext4 with the store's folder.
"""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvtier_client.protocol.messages import Reach

from dev.faults.device import DISK_FILE, FaultyFolder, open_disk
from dev.faults.filesystems import make_ext4, mounted
from dev.faults.place import loop_device, open_place
from dev.faults.recording import Recording
from dev.faults.replay import apply_cut, decide_cut
from tests.chaos.ledger import Ledger, draw
from tests.chaos.report import CrashReport
from tests.chaos.rounds import count
from tests.chaos.scene import open_scene
from tests.chaos.workload import BlockKey, PageKey, PutPlan

DISK_BYTES: Final = 768 << 20
NVME_BYTES: Final = 512 << 20
DRAM_BYTES: Final = 512 << 20
RECORDINGS_PER_DISK: Final = 4
"""Each goes on with what a cut of the one before left; more would fill the disk."""
CUTS_PER_RECORDING: Final = 10
LEAST_PUTS: Final = 15
MOST_PUTS: Final = 40
PAGES_PER_CUT: Final = 500
"""Drawn evenly; what was acknowledged last before the cut is read on top."""
LAST_ACKNOWLEDGED: Final = 20


@dataclass
class Witness:
    """Puts that were acknowledged as flushed, with the mark that each left in the recording. Thread-safe."""

    device: FaultyFolder
    plans: dict[int, PutPlan] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledged(self, plan: PutPlan, reach: Reach) -> None:
        """Note a put that was just answered."""
        if reach is Reach.FLUSHED:
            with self._lock:
                self.plans[len(self.plans) + 1] = plan
                self.device.mark(len(self.plans))

    def end(self) -> int:
        """Leave the last mark, and return its number."""
        with self._lock:
            self.device.mark(0)
        return 0


@dataclass(frozen=True)
class Recorded:
    """What happened on the disk, beginning with the content of `base`, and what was promised meanwhile."""

    base: Path
    recording: Recording
    plans: dict[int, PutPlan]
    ledger: Ledger
    """All blocks that were ever sent."""
    promised_before: list[PageKey]

    def ledger_at(self, cut: int) -> Ledger:
        """What the store has promised by then, from nvme alone."""
        plans = [self.plans[number] for number in self.recording.marks_before(cut) if number]
        keys = {key for plan in plans for key in plan.page_keys()}
        return self.ledger.fork(keys.union(self.promised_before))

    def last_acknowledged(self, cut: int) -> set[BlockKey]:
        """The blocks whose acknowledgement was the latest by then."""
        last = sorted(number for number in self.recording.marks_before(cut) if number)[-LAST_ACKNOWLEDGED:]
        return {BlockKey(key.shape, key.hash) for number in last for key in self.plans[number].page_keys()}

    def random_cut(self, rng: random.Random) -> int:
        """A point between the store's start and its end."""
        return rng.randrange(1, self.recording.marks[0] + 1)


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


@contextmanager
def media_on(disk: Path, place: Path) -> Iterator[Path]:
    """The store's folder on the disk's file system."""
    with mounted(disk, place / f"fs-{disk.name}") as folder:
        yield folder / "media"


def record_load(place: Path, base: Path, ledger: Ledger, rng: random.Random) -> Recorded:
    """Record a store's life under load, from its start on the content of `base` to a kill."""
    promised_before = ledger.flushed_pages()
    with FaultyFolder(place) as device:
        copy_sparse(base, device.backing / DISK_FILE)
        witness = Witness(device)
        with open_disk(device, DISK_BYTES) as disk:
            device.record(DISK_FILE)
            with (
                media_on(disk, place) as media,
                open_scene(
                    rng, DRAM_BYTES, NVME_BYTES, media, ledger=ledger, acknowledged=witness.acknowledged
                ) as scene,
            ):
                scene.start()
                scene.store_puts(rng.randint(LEAST_PUTS, MOST_PUTS))
                witness.end()
                scene.kill()
                scene.bury()
        (device.backing / DISK_FILE).unlink()
        return Recorded(base, device.stop_recording(), witness.plans, ledger, promised_before)


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
        media_on(disk, image.parent) as media,
        open_scene(rng, DRAM_BYTES, NVME_BYTES, media, ledger=recorded.ledger_at(cut)) as scene,
    ):
        scene.start()
        stretches, last = scene.ledger.stretches(), recorded.last_acknowledged(cut)
        drawn = scene.read_back(draw(stretches, PAGES_PER_CUT, rng))
        report.drawn += drawn.served
        drawn.add(scene.read_back([it for it in stretches if not last.isdisjoint(it.blocks)]))
        count(drawn, report)
        report.power_cuts += 1
        scene.kill()
        scene.bury()
    return drawn.wrong


def run_cuts(cuts: int, rng: random.Random, report: CrashReport, say: Callable[[str], None]) -> None:
    """So many power cuts, of as many recordings as that takes; `report` is true at every moment.

    Raises FaultsUnavailable, CgroupUnavailable, StoreFailed, TimeoutError.
    """
    while report.power_cuts < cuts:
        with open_place() as place:
            base = place / "base"
            make_base(base)
            ledger = Ledger()
            for _ in range(RECORDINGS_PER_DISK):
                if report.power_cuts < cuts:
                    ledger = run_recording(place, base, ledger, cuts, rng, report, say)


def make_base(base: Path) -> None:
    """A disk with an empty file system."""
    with base.open("wb") as file:
        file.truncate(DISK_BYTES)
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
) -> Ledger:
    """Record once, try cuts of it, and leave in `base` what the last of them left; returns what is promised of that."""
    recorded = record_load(place, base, ledger, rng)
    image = place / "image"
    for _ in range(min(CUTS_PER_RECORDING, cuts - report.power_cuts)):
        cut = recorded.random_cut(rng)
        before = CrashReport(lost_flushed=report.lost_flushed, served=report.served)
        wrong = try_cut(recorded, cut, image, rng, report)
        say(
            f"power cut {report.power_cuts}/{cuts} at {cut} of {recorded.recording.length} records: "
            f"{report.served - before.served} pages read right, lost {report.lost_flushed - before.lost_flushed} "
            f"flushed, wrong {len(wrong)}"
        )
        for line in wrong[:5]:
            say(f"  wrong: {line}")
    report.written_bytes += sum(write.length for write in recorded.recording.writes)
    image.replace(base)
    return recorded.ledger_at(cut)
