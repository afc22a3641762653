"""The crash test's end of a bystander: start, command, stop and continue it, and always end it."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.bystander import Tally

ANSWER_DEADLINE_S: Final = 60.0
REPOSITORY: Final = Path(__file__).resolve().parents[2]


class BystanderFailed(Exception):
    """A bystander ended or fell silent; its own words are on stderr."""


class BystanderProcess:
    """A client in a process of its own. Not thread-safe."""

    def __init__(self, sockets: Mapping[str, Path], chains_file: Path, mode: str) -> None:
        """Start it; `mode` is `read` or `hold`. It dies with this process."""
        self._mode = mode
        named = msgspec.json.encode({pool: str(path) for pool, path in sockets.items()}).decode()
        command = [sys.executable, "-m", "tests.chaos.bystander", named, str(chains_file), mode]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def check(self) -> Tally:
        """Let one that holds check, hold anew, and answer.

        Raises BystanderFailed.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """SIGSTOP: it keeps its mappings and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def finish(self) -> Tally:
        """Let one that reads say what it saw, and end.

        Raises BystanderFailed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        tally = self._answer()
        self.end()
        return tally

    def end(self) -> None:
        """Kill it, stopped or not. May be repeated."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()

    def _answer(self) -> Tally:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_DEADLINE_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            cause = f"ended with status {self._process.wait()}" if ready else f"silent for {ANSWER_DEADLINE_S:.0f} s"
            raise BystanderFailed(f"the client that should {self._mode}: {cause}")
        return msgspec.json.decode(line, type=Tally)
