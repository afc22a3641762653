"""Lines of progress with the time since the start, and waiting with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dev.cluster.processes import Process, tail

POLL_S = 0.1


class ComponentFailed(Exception):
    """A part of the cluster ended, or did not get ready in time; the message has the end of its log."""

    def __init__(self, what: str, processes: Iterable[Process]) -> None:
        logs = "".join(f"\n--- end of {p.log} ---\n{tail(p.log)}" for p in processes)
        super().__init__(f"{what}{logs}")


class Progress:
    """Prints one line per step, headed by the seconds since this object was made."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print `text`, unless this progress is silent."""
        if self._say is not None:
            self._say(f"[{time.monotonic() - self._started:6.1f} s] {text}")


def wait_until(what: str, ready: Callable[[], bool], deadline_s: float, processes: Iterable[Process] = ()) -> None:
    """Return once `ready()` is true, which is asked ten times a second.

    Raises ComponentFailed when one of `processes` ends before, or after `deadline_s` seconds.
    """
    watched = tuple(processes)
    end = time.monotonic() + deadline_s
    while not ready():
        for process in watched:
            if process.ended():
                raise ComponentFailed(f"{process.name} ended before {what}", [process])
        if time.monotonic() > end:
            raise ComponentFailed(f"{what}: not within {deadline_s:.0f} s", watched)
        time.sleep(POLL_S)
