"""The kernel's own counters of memory and I/O. Parsers are pure; `read_` looks now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECTOR: Final = 512
_MAPPING: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ \d+ *(.*)$")


@dataclass(frozen=True)
class DeviceIo:
    """What a block device has done since it came up."""

    read_requests: int = 0
    read_bytes: int = 0
    write_requests: int = 0
    write_bytes: int = 0

    def __sub__(self, earlier: DeviceIo) -> DeviceIo:
        return DeviceIo(
            self.read_requests - earlier.read_requests,
            self.read_bytes - earlier.read_bytes,
            self.write_requests - earlier.write_requests,
            self.write_bytes - earlier.write_bytes,
        )


@dataclass(frozen=True)
class ProcessIo:
    """What processes have had the kernel read from and write to devices, and how many read calls they made."""

    read_calls: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def __add__(self, other: ProcessIo) -> ProcessIo:
        return ProcessIo(
            self.read_calls + other.read_calls,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
        )

    def __sub__(self, earlier: ProcessIo) -> ProcessIo:
        return ProcessIo(
            self.read_calls - earlier.read_calls,
            self.read_bytes - earlier.read_bytes,
            self.write_bytes - earlier.write_bytes,
        )


def parse_block_stat(text: str) -> DeviceIo:
    """Of `/sys/dev/block/MAJOR:MINOR/stat`.

    Raises ValueError when it is none.
    """
    fields = [int(field) for field in text.split()]
    if len(fields) < 11:
        raise ValueError(f"a block device's stat has at least 11 fields, not {len(fields)}")
    return DeviceIo(fields[0], fields[2] * SECTOR, fields[4], fields[6] * SECTOR)


def parse_process_io(text: str) -> ProcessIo:
    """Of `/proc/PID/io`.

    Raises KeyError when a line is missing.
    """
    fields = dict(line.split(": ") for line in text.splitlines())
    return ProcessIo(int(fields["syscr"]), int(fields["read_bytes"]), int(fields["write_bytes"]))


def parse_smaps(text: str) -> Iterator[tuple[str, int]]:
    """Each mapping of `/proc/PID/smaps`: its file's path ("" for none), and its share of memory in bytes.

    Memory shared by n processes counts 1/n in each (the kernel's Pss).
    """
    path = ""
    for line in text.splitlines():
        if (mapping := _MAPPING.match(line)) is not None:
            path = mapping.group(1)
        elif line.startswith("Pss:"):
            yield path, int(line.split()[1]) * 1024


def read_device_io(folder: Path) -> DeviceIo | None:
    """Of the block device that `folder` lies on; None when it lies on none."""
    number = folder.stat().st_dev
    with suppress(OSError):
        stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        return parse_block_stat(stat.read_text())
    return None


def read_process_io(pids: Iterable[int]) -> ProcessIo:
    """Of all of `pids` together; one that has ended counts nothing."""
    total = ProcessIo()
    for pid in pids:
        with suppress(OSError):
            total += parse_process_io(Path(f"/proc/{pid}/io").read_text())
    return total


def read_own_memory(pids: Iterable[int], apart_from: Iterable[Path]) -> int:
    """Bytes of memory of all of `pids`, without what they map of files below `apart_from` and of clients' staging."""
    excluded = (*(str(folder) for folder in apart_from), "/memfd:kvtier-staging")
    total = 0
    for pid in pids:
        with suppress(OSError):
            mappings = parse_smaps(Path(f"/proc/{pid}/smaps").read_text())
            total += sum(size for path, size in mappings if not path.startswith(excluded))
    return total


def read_descriptors(pids: Iterable[int]) -> int:
    """Open descriptors of all of `pids`."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 (names suffice)
    return total


def read_tree(pid: int) -> list[int]:
    """`pid` and every process below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    tree = [pid]
    for known in tree:
        tree.extend(children.get(known, []))
    return tree
