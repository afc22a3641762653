"""A disk in a file: a loop device with direct I/O and a file system of its own. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kvtier_bench.figures import CannotRun


@contextlib.contextmanager
def mounted_loop(folder: Path, size: int) -> Iterator[Path]:
    """The mount point of a new ext4 of `size` bytes, whose image lies in `folder`; both are gone afterwards.

    Raises CannotRun.
    """
    image, mount_point = folder / "disk.img", folder / "disk"
    mount_point.mkdir(parents=True)
    _run("fallocate", "-l", str(size), str(image))
    with contextlib.ExitStack() as stack:
        stack.callback(image.unlink)
        device = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
        stack.callback(_run, "losetup", "--detach", device)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        _run("mount", device, str(mount_point))
        stack.callback(_run, "umount", str(mount_point))
        yield mount_point


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        raise CannotRun(f"{' '.join(command)}: {words.strip()}; loop devices need root") from error
