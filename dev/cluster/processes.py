"""Processes of a cluster: started in its cgroups, in a holder's namespaces, with a log file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.cluster import cgroups

PROGRAMS = Path(__file__).parent / "programs"
LOG_TAIL_LINES = 25
REAP_S = 10.0
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# Enters the cgroups before the program starts, so that no child of it can be outside.
ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 97; shift; done; shift; exec "$@"'


_started: list[tuple[str, subprocess.Popen[bytes]]] = []
"""Handles of this process's children with their cgroups: a child must be waited for by whoever started it."""


def search_path() -> str:
    """PATH with the folders of system programs, which some users' PATH lacks even as root."""
    present = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*present, *(folder for folder in SYSTEM_FOLDERS if folder not in present)])


def environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment with the full search path, and `extra`."""
    return {**os.environ, "PATH": search_path(), **(extra or {})}


class CommandFailed(Exception):
    """A command that had to succeed did not; the message has it and what it printed."""

    def __init__(self, command: Sequence[str], outcome: str, printed: str) -> None:
        super().__init__(f"{' '.join(command)}: {outcome}\n{printed.strip()[-4000:]}")


@dataclass(frozen=True)
class Process:
    """A running component: its name, its handle and its log."""

    name: str
    handle: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> bool:
        """Whether it runs no longer."""
        return self.handle.poll() is not None


def inside(holder: int) -> list[str]:
    """The command that runs what follows it in all namespaces of the process `holder`."""
    return ["nsenter", f"--target={holder}", "--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/", "--"]


def start(name: str, command: Sequence[str], *, cgroup: str, log: Path) -> Process:
    """Start `command` in `cgroup`, away from the terminal, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    entries = [str(path) for path in cgroups.entries(cgroup)]
    with log.open("ab") as output:
        handle = subprocess.Popen(
            ["sh", "-c", ENTER, "sh", *entries, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment(None),
        )
    _started.append((cgroup, handle))
    return Process(name, handle, log)


def reap(cgroup: str) -> None:
    """Wait for the children of this process that ran in `cgroup` or below, after these were killed."""
    for entry in list(_started):
        where, handle = entry
        if Path(where).is_relative_to(cgroup):
            handle.wait(REAP_S)
            _started.remove(entry)


def python_program(name: str, *arguments: str) -> list[str]:
    """The command for one of the small programs in `programs/`, which need the standard library alone."""
    return [sys.executable, "-I", "-S", str(PROGRAMS / f"{name}.py"), *arguments]


def run(
    command: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002
    timeout_s: float = 60.0,
    extra: Mapping[str, str] | None = None,
) -> str:
    """What `command` prints, run with the variables `extra` besides this process's.

    Raises CommandFailed when it fails or takes longer than `timeout_s`.
    """
    variables = environment(extra)
    try:
        done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout_s, env=variables)
    except subprocess.TimeoutExpired as late:
        printed = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else (late.stderr or "")
        raise CommandFailed(command, f"no end within {timeout_s:.0f} s", printed) from late
    if done.returncode:
        raise CommandFailed(command, f"exit status {done.returncode}", done.stdout[-2000:] + done.stderr)
    return done.stdout


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(line[:400] for line in lines[-LOG_TAIL_LINES:])
