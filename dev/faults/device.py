"""Faulty devices for tests: a folder, or a block device, that does what its rules say and records what reaches it."""

from __future__ import annotations

import itertools
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from .place import FaultsUnavailable, loop_device
from .recording import Recording, read_recording
from .rules import WELL, Rules
from .server import Command, State

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_ANSWER_S: Final = 30.0
_numbers: Final = itertools.count(1)


class FaultyFolder:
    """A mounted folder. A context manager; one thread may command it, anyone may use the files."""

    def __init__(self, place: Path, name: str = "") -> None:
        """Make it in a folder from `open_place`, mounted on entry."""
        home = place / (name or f"device-{next(_numbers)}")
        self.folder = home / "mount"
        """Where its files are seen."""
        self.backing = home / "backing"
        """The files themselves, out of reach of the rules."""
        self._control_path = home / "control"
        self._log = home / "recording"
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers = b""

    def __enter__(self) -> Self:
        """Raises FaultsUnavailable when it cannot be mounted; the server's own words are on stderr."""
        self.backing.mkdir(parents=True)
        self.folder.mkdir()
        places = [str(path) for path in (self.folder, self.backing, self._control_path)]
        command = [sys.executable, "-m", "dev.faults.server", *places]
        self._server = subprocess.Popen(command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], _ANSWER_S)
        if not ready or not self._server.stdout.readline():
            self._end_server()
            raise FaultsUnavailable(f"nothing is mounted at {self.folder}; is FUSE allowed here?")
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(_ANSWER_S)
        self._control.connect(str(self._control_path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._control is not None:
            self._control.close()
        self._end_server()

    def set(self, rules: Rules) -> None:
        """Behave like this from the next request on."""
        self._ask(Command(rules=rules))

    def heal(self) -> None:
        """Be well. What is delayed already is still late."""
        self.set(WELL)

    def release(self) -> None:
        """Let what is delayed begin now; the rules stay."""
        self._ask(Command(release=True))

    def record(self, file: str) -> None:
        """Begin to record what happens to this file, anew."""
        self._ask(Command(record=str(self._log), file=file))

    def mark(self, number: int) -> None:
        """Put a mark in the recording: what it stands for has happened."""
        self._ask(Command(mark=number))

    def stop_recording(self) -> Recording:
        """What was recorded."""
        self._ask(Command(stop_recording=True))
        return read_recording(self._log)

    def state(self) -> State:
        """What has happened since the mount."""
        return self._ask(Command())

    def _ask(self, command: Command) -> State:
        """Raises TimeoutError, OSError when the server does not answer."""
        assert self._control is not None
        self._control.sendall(msgspec.json.encode(command) + b"\n")
        while b"\n" not in self._answers:
            received = self._control.recv(1 << 16)
            if not received:
                raise ConnectionError(f"the server of {self.folder} ended")
            self._answers += received
        line, _, self._answers = self._answers.partition(b"\n")
        return msgspec.json.decode(line, type=State)

    def _end_server(self) -> None:
        """Unmount, also while requests wait: they fail then."""
        if self._server is None:
            return
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()
        try:
            self._server.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None


DISK_FILE: Final = "disk"


@contextmanager
def open_disk(folder: FaultyFolder, size_bytes: int) -> Iterator[Path]:
    """A block device whose requests reach `folder`'s file DISK_FILE, as large as said; blank where it is new."""
    with (folder.backing / DISK_FILE).open("ab") as file:
        os.truncate(file.fileno(), size_bytes)
    with loop_device(folder.folder / DISK_FILE) as device:
        yield device
