"""Which parts of its devices a store reads: its system calls, by strace. It slows them, so nothing is timed here."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtier_bench import environment
from kvtier_bench.figures import CannotRun
from kvtier_bench.store import Store

ATTACH_S: Final = 20.0
_BEGUN: Final = re.compile(r"^(\d+) +(preadv2?|pread64)\(\d+<([^>]*)>(.*)$")
_RESUMED: Final = re.compile(r"^(\d+) +<\.\.\. (?:preadv2?|pread64) resumed>(.*)$")
_UNFINISHED: Final = "<unfinished ...>"
_ENDS: Final = {
    "preadv": re.compile(r", (\d+)\) += (\d+)$"),
    "pread64": re.compile(r", (\d+)\) += (\d+)$"),
    "preadv2": re.compile(r", (\d+), \w+\) += (\d+)$"),
}
"""Where a call's offset and result stand."""


@dataclass(frozen=True, order=True)
class Read:
    """One read of a device."""

    path: str
    offset: int
    size: int


def parse_trace(lines: Iterable[str]) -> list[Read]:
    """The positioned reads that succeeded, of `strace -f -y`. Pure."""
    reads = []
    unfinished: dict[str, tuple[str, str, str]] = {}
    for line in lines:
        if (begun := _BEGUN.match(line)) is not None:
            thread, call, path, rest = begun.groups()
            if rest.rstrip().endswith(_UNFINISHED):
                unfinished[thread] = call, path, rest.rstrip().removesuffix(_UNFINISHED).rstrip()
                continue
        elif (resumed := _RESUMED.match(line)) is not None and resumed.group(1) in unfinished:
            call, path, beginning = unfinished.pop(resumed.group(1))
            rest = beginning + resumed.group(2)
        else:
            continue
        if (ended := _ENDS[call].search(rest.strip())) is not None:
            reads.append(Read(path, int(ended.group(1)), int(ended.group(2))))
    return reads


def pieces(reads: Iterable[Read]) -> int:
    """How many parts of the device, each without a gap, the reads fetch together. Pure."""
    count = 0
    path, end = "", -1
    for read in sorted(reads):
        if read.path != path or read.offset > end:
            count += 1
            end = -1
        path, end = read.path, max(end, read.offset + read.size)
    return count


@contextlib.contextmanager
def traced(store: Store, log: Path) -> Iterator[None]:
    """What the store reads within the block is written to `log`.

    Raises CannotRun.
    """
    program = environment.program("strace", "strace")
    pids = store.pids
    log.unlink(missing_ok=True)
    command = [program, "-f", "-y", "-s", "0", "-e", "trace=preadv,preadv2,pread64", "-o", str(log)]
    with (log.with_suffix(".err")).open("wb") as errors:
        tracer = subprocess.Popen([*command, *(f"--attach={pid}" for pid in pids)], stderr=errors)
    try:
        _wait_attached(pids, tracer, log)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it detaches
        tracer.wait(ATTACH_S)


def reads_of(log: Path, folder: Path) -> list[Read]:
    """What was read of files below `folder`."""
    with log.open(errors="replace") as file:
        return [read for read in parse_trace(file) if read.path.startswith(str(folder))]


def _wait_attached(pids: list[int], tracer: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + ATTACH_S
    while any(_is_untraced(pid) for pid in pids):
        if tracer.poll() is not None or time.monotonic() > deadline:
            words = log.with_suffix(".err").read_text(errors="replace").strip()[-300:]
            raise CannotRun(f"strace cannot watch the store: {words or 'it does not attach'}; run it as root")
        time.sleep(0.05)


def _is_untraced(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nTracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text()
    return False
