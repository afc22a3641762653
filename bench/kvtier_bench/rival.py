"""The bench's end of a contender's process."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kvtier_bench.contenders.contender import Task
from kvtier_bench.figures import CannotRun

ANSWER_S: Final = 120.0
_BENCH: Final = Path(__file__).parents[1]


class Rival:
    """A contender that runs. A context manager: leaving it ends the process. Not thread-safe."""

    def __init__(self, name: str, task: Task, log: Path, python: Path = Path(sys.executable)) -> None:
        """Start it with `python`, and wait until it is connected.

        Raises CannotRun.
        """
        self.name = name
        self._log = log
        self._process = start_module(
            "kvtier_bench.contenders", [name, json.dumps(dataclasses.asdict(task))], log, python
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def act(self, what: str, batch: int, version: int = 0) -> float:
        """Have it put, get, or what else it can; the seconds that took.

        Raises CannotRun with its own words.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([what, batch, version]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise CannotRun(f"{self.name} ended: {_tail(self._log)}") from error
        answer = self._answer()
        if isinstance(answer, dict):
            raise CannotRun(f"{self.name}: {what} failed: {answer['error']}")
        return float(answer)

    def close(self) -> None:
        """Kill it."""
        end(self._process)

    def _answer(self) -> Any:
        return read_answer(self._process, self.name, self._log)


def start_module(module: str, arguments: list[str], log: Path, python: Path) -> subprocess.Popen[bytes]:
    """A process that runs a module of the bench and dies with this one; its stderr goes to `log`."""
    environment = {**os.environ, "PYTHONPATH": str(_BENCH), "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2"}
    with log.open("ab") as file:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", str(python), "-m", module, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select must see every line
            stderr=file,
        )


def read_answer(process: subprocess.Popen[bytes], name: str, log: Path) -> Any:
    """The next line of JSON that the process prints; other lines are its library's and are passed over.

    Raises CannotRun when it ends or stays silent for ANSWER_S.
    """
    assert process.stdout is not None
    while True:
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            cause = "ended" if ready else f"is silent for {ANSWER_S:.0f} s"
            raise CannotRun(f"{name} {cause}: {_tail(log)}")
        try:
            return json.loads(line)
        except ValueError:
            continue


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and close its pipes. May be repeated."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:] if log.exists() else ""
