"""What keeps the index process prompt: its place before the others, and no garbage collection in a request's way."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import struct
import time
from typing import Final

_SYS_SCHED_SETATTR: Final = 314
"""amd64."""
_ATTRIBUTES: Final = struct.Struct("<IIQiIQQQII")
_RESET_ON_FORK: Final = 1
_SLICE_NS: Final = 100_000
"""The least that the kernel takes."""
_NICE: Final = 5
_OLD_EVERY_S: Final = 600.0
_libc: Final = ctypes.CDLL(None, use_errno=True)
_old_at = 0.0


def ask_short_slices() -> bool:
    """Whether the kernel gives this process short turns, and so soon ones (Linux 6.12): its requests are short.

    A process that wakes up then goes before those with longer slices, without any privilege. Its children do not.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # as it was started with
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, _SLICE_NS, 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attributes)
    return bool(_libc.syscall(_SYS_SCHED_SETATTR, 0, buffer, 0) == 0)


def stay_prompt() -> None:
    """Called once, before anything is served."""
    ask_short_slices()
    gc.disable()
    gc.collect()
    gc.freeze()


def step_back() -> None:
    """Of a mover: let the index process run first, wherever both want a processor."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def tidy() -> None:
    """Collect garbage while nothing waits: the young often, the old rarely."""
    global _old_at
    now = time.monotonic()
    if now - _old_at > _OLD_EVERY_S:
        _old_at = now
        gc.collect()
    else:
        gc.collect(0)
