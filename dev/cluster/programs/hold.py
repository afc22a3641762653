"""Holds new namespaces: `hold.py PIDFILE HOSTNAME`. Standard library alone; runs until killed.

The process whose ID is in PIDFILE is the first one of its PID namespace: it takes in orphans, and all that runs in the
namespace ends with it.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def check(outcome: int, what: str) -> None:
    """Raise OSError when a call of the C library failed."""
    if outcome:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def first_process() -> None:
    """Reap what ends in this PID namespace, for ever."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    while True:
        signal.sigwait({signal.SIGCHLD})
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main(pid_file: str, hostname: str) -> None:
    """Make the namespaces, write down who holds them, and stay with that process."""
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "unshare")
    socket.sethostname(hostname)
    child = os.fork()
    if child == 0:
        first_process()
    partial = Path(f"{pid_file}.partial")
    partial.write_text(str(child))
    partial.rename(pid_file)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
