"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FALLBACK_CACHE_BYTES: Final = 32 << 20


def parse_cache_size(text: str) -> int:
    """Bytes of the kernel's `32768K`.

    Raises ValueError when it is none.
    """
    text = text.strip()
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)


def last_level_cache_bytes() -> int:
    """Of the first processor; FALLBACK_CACHE_BYTES where the kernel does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(parse_cache_size(entry.read_text()))
    return max(sizes, default=FALLBACK_CACHE_BYTES)


def describe() -> dict[str, Any]:
    """The machine, its load now, and the versions of what runs on it."""
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "last_level_cache_mib": last_level_cache_bytes() >> 20,
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "python": platform.python_version(),
        "kvtier": version("kvtier"),
        "commit": _commit(),
        "load": list(os.getloadavg()),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""
