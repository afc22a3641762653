"""The rigs themselves: faulty folders and disks do what their rules say, and recordings tell what happened."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.faults.device import DISK_FILE, FaultyFolder, open_disk
from dev.faults.filesystems import empty, fill, make_ext4, mounted, small_file_system
from dev.faults.mounts import mounts_below
from dev.faults.place import remove_remains
from dev.faults.replay import apply_cut, decide_cut
from dev.faults.rules import WELL, Kind, Rules, decide_fate
from dev.faults.throttle import Throttle

DISK_BYTES = 64 << 20
PAGE = 4096


def page_of(value: int) -> mmap.mmap:
    """A page that direct I/O takes."""
    page = mmap.mmap(-1, PAGE)
    page[:] = bytes([value]) * PAGE
    return page


def write_page(path: Path, value: int, at: int = 0) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        assert os.pwrite(fd, page_of(value), at) == PAGE
        os.fdatasync(fd)
    finally:
        os.close(fd)


def read_page(path: Path, at: int = 0) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        page = page_of(0)
        assert os.preadv(fd, [page], at) == PAGE
        return page[:]
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("rules", "kind", "changes", "written", "expected"),
    [
        (WELL, Kind.WRITE, True, 1 << 40, 0),
        (Rules(errno={Kind.READ: errno.EIO}), Kind.READ, False, 0, errno.EIO),
        (Rules(errno={Kind.READ: errno.EIO}), Kind.WRITE, True, 0, 0),
        (Rules(read_only=True), Kind.WRITE, True, 0, errno.EROFS),
        (Rules(read_only=True), Kind.NAMES, True, 0, errno.EROFS),
        (Rules(read_only=True), Kind.READ, False, 0, 0),
        (Rules(gone=True), Kind.NAMES, False, 0, errno.ENOENT),
        (Rules(gone=True), Kind.FLUSH, False, 0, errno.EIO),
        (Rules(full_after_bytes=10), Kind.WRITE, True, 9, 0),
        (Rules(full_after_bytes=10), Kind.WRITE, True, 10, errno.ENOSPC),
        (Rules(full_after_bytes=10), Kind.READ, False, 10, 0),
    ],
)
def test_rules_decide_each_request(rules: Rules, kind: Kind, changes: bool, written: int, expected: int) -> None:
    assert decide_fate(rules, kind, changes=changes, written_bytes=written).errno == expected


def test_well_folder_keeps_files_names_and_folders(device: FaultyFolder) -> None:
    (device.folder / "a").mkdir()
    (device.folder / "a" / "file").write_bytes(b"content")
    (device.folder / "a").rename(device.folder / "b")
    assert (device.folder / "b" / "file").read_bytes() == b"content"
    assert [path.name for path in device.folder.iterdir()] == ["b"]
    assert (device.backing / "b" / "file").read_bytes() == b"content"
    with (device.folder / "b" / "file").open("r+b") as unlinked:
        (device.folder / "b" / "file").unlink()
        (device.folder / "b").rmdir()
        unlinked.truncate(3)
        assert unlinked.read() == b"con"
    assert list(device.folder.iterdir()) == []


def test_direct_io_comes_back_whole_in_any_size(device: FaultyFolder) -> None:
    content = random.Random(1).randbytes(9 << 20)
    buffer = mmap.mmap(-1, len(content))
    buffer[:] = content
    fd = os.open(device.folder / "large", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        os.posix_fallocate(fd, 0, len(content))
        assert os.pwrite(fd, buffer, 0) == len(content)
        buffer[:] = bytes(len(content))
        assert os.preadv(fd, [buffer], 0) == len(content)
    finally:
        os.close(fd)
    assert buffer[:] == content


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failing_reads_and_writes_return_the_errno_until_healed(device: FaultyFolder, number: int) -> None:
    write_page(device.folder / "file", 1)
    device.set(Rules(errno={Kind.READ: number, Kind.WRITE: number}))
    for attempt in (lambda: read_page(device.folder / "file"), lambda: write_page(device.folder / "file", 2)):
        with pytest.raises(OSError) as raised:
            attempt()
        assert raised.value.errno == number
    device.heal()
    assert read_page(device.folder / "file") == page_of(1)[:]


def test_read_only_and_gone_folders_refuse_by_their_own_errors(device: FaultyFolder) -> None:
    write_page(device.folder / "file", 1)
    device.set(Rules(read_only=True))
    with pytest.raises(OSError, match="Read-only"):
        write_page(device.folder / "other", 2)
    assert read_page(device.folder / "file") == page_of(1)[:]
    with (device.folder / "file").open("rb") as opened:
        device.set(Rules(gone=True))
        with pytest.raises(FileNotFoundError):
            read_page(device.folder / "file")
        with pytest.raises(OSError) as raised:
            opened.read()
    assert raised.value.errno == errno.EIO


def test_full_folder_takes_what_it_had_room_for(device: FaultyFolder) -> None:
    device.set(Rules(full_after_bytes=2 * PAGE))
    write_page(device.folder / "file", 1)
    write_page(device.folder / "file", 1, at=PAGE)
    with pytest.raises(OSError, match="No space"):
        write_page(device.folder / "file", 1, at=2 * PAGE)


def test_delayed_read_waits_while_others_are_answered(device: FaultyFolder) -> None:
    write_page(device.folder / "file", 1)
    device.set(Rules(delay_s={Kind.READ: 3600.0}))
    reader = threading.Thread(target=read_page, args=(device.folder / "file",), daemon=True)
    reader.start()
    _wait_until(lambda: device.state().waiting == 1)
    write_page(device.folder / "other", 2)
    assert reader.is_alive()
    device.release()
    reader.join(30)
    assert not reader.is_alive()


def _wait_until(holds: Callable[[], bool], deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_reader_stays_until_the_device_answers(device: FaultyFolder) -> None:
    write_page(device.folder / "file", 1)
    device.set(Rules(delay_s={Kind.READ: 3600.0}))
    reader = subprocess.Popen(["dd", f"if={device.folder / 'file'}", "of=/dev/null", "iflag=direct", "status=none"])
    _wait_until(lambda: device.state().waiting == 1)
    reader.kill()
    _wait_until(lambda: "State:\tD" in Path(f"/proc/{reader.pid}/status").read_text())
    assert reader.poll() is None
    device.release()
    assert reader.wait(30) != 0


def test_disk_reaches_its_file_and_fails_by_its_rules(device: FaultyFolder) -> None:
    with open_disk(device, DISK_BYTES) as disk:
        write_page(disk, 3, at=PAGE)
        device.set(Rules(errno={Kind.READ: errno.EIO}))
        with pytest.raises(OSError) as raised:
            read_page(disk, at=PAGE)
        assert raised.value.errno == errno.EIO
        device.heal()
        assert read_page(disk, at=PAGE) == page_of(3)[:]
    with (device.backing / DISK_FILE).open("rb") as file:
        assert file.read(2 * PAGE) == bytes(PAGE) + page_of(3)[:]


def test_recording_of_a_disk_brings_back_what_was_flushed(device: FaultyFolder) -> None:
    class Image:
        content = bytearray(DISK_BYTES)

        def write_at(self, offset: int, data: memoryview) -> None:
            self.content[offset : offset + len(data)] = data

    with open_disk(device, DISK_BYTES) as disk:
        device.record(DISK_FILE)
        for number in range(8):
            write_page(disk, number + 1, at=number * PAGE)
            device.mark(number)
        recording = device.stop_recording()
    assert set(recording.marks) == set(range(8))
    for number in range(8):
        image = Image()
        apply_cut(decide_cut(recording, recording.marks[number], random.Random(number)), image)
        for earlier in range(number + 1):
            assert image.content[earlier * PAGE : (earlier + 1) * PAGE] == page_of(earlier + 1)[:]


def test_files_synced_on_ext4_survive_cuts_of_its_disk(device: FaultyFolder, place: Path) -> None:
    with open_disk(device, DISK_BYTES) as disk:
        make_ext4(disk)
        base = (device.backing / DISK_FILE).read_bytes()
        device.record(DISK_FILE)
        with mounted(disk, place / "fs") as folder:
            for number in range(16):
                write_page(folder / str(number), number)
                _sync_folder(folder)
                device.mark(number)
        recording = device.stop_recording()
    rng = random.Random(2)
    with FaultyFolder(place) as other:
        for number in range(0, 16, 3):
            image = bytearray(base)
            medium = _Buffer(image)
            apply_cut(decide_cut(recording, recording.marks[number] + rng.randint(0, 20), rng), medium)
            (other.backing / DISK_FILE).write_bytes(image)
            with open_disk(other, DISK_BYTES) as disk, mounted(disk, place / "after") as folder:
                for earlier in range(number + 1):
                    assert read_page(folder / str(earlier)) == page_of(earlier)[:]


class _Buffer:
    def __init__(self, content: bytearray) -> None:
        self._content = content

    def write_at(self, offset: int, data: memoryview) -> None:
        self._content[offset : offset + len(data)] = data


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def test_small_file_system_is_full_and_has_room_again(place: Path) -> None:
    with small_file_system(place, 32 << 20) as folder:
        fill(folder)
        with pytest.raises(OSError, match="No space"), (folder / "file").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
        empty(folder)
        write_page(folder / "file", 1)
        assert read_page(folder / "file") == page_of(1)[:]


def test_throttle_limits_a_process_that_enters_it(device: FaultyFolder) -> None:
    """16 pages take a second at 16 pages a second, whatever the disk can."""
    with open_disk(device, DISK_BYTES) as disk, Throttle("test") as throttle:
        throttle.limit(disk, read_bps=16 * PAGE)
        reading = (
            f"echo $$ > {throttle.procs}; exec dd if={disk} of=/dev/null bs=4096 count=32 iflag=direct status=none"
        )
        begin = time.monotonic()
        subprocess.run(["sh", "-c", reading], check=True, timeout=60)
        throttled_s = time.monotonic() - begin
        throttle.limit(disk)
        subprocess.run(["sh", "-c", reading], check=True, timeout=60)
    assert throttled_s > 1.0


@pytest.mark.usefixtures("place")
def test_devices_of_a_killed_process_are_found_and_removed() -> None:
    script = """
import os, signal
from contextlib import ExitStack
from dev.faults.device import FaultyFolder, open_disk
from dev.faults.filesystems import make_ext4, mounted
from dev.faults.place import open_place
stack = ExitStack()
place = stack.enter_context(open_place())
disk = stack.enter_context(open_disk(stack.enter_context(FaultyFolder(place)), 64 << 20))
make_ext4(disk)
stack.enter_context(mounted(disk, place / "fs"))
print(place, disk, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.stdout.startswith("/dev/shm/kvtier-faults-"), killed.stderr
    left, disk = (Path(word) for word in killed.stdout.split())
    remove_remains()
    _wait_until(lambda: not Path("/sys/block", disk.name, "loop").exists())
    assert mounts_below(left) == []
    assert not left.exists()
