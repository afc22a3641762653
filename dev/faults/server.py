"""A faulty device's server: `python -m dev.faults.server MOUNT BACKING CONTROL`.

Mounts BACKING at MOUNT through FUSE and does to each request what the rules say. CONTROL is a Unix socket: one command
as a line of JSON, one answer. Ends, and unmounts, when its stdin closes.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from . import wire
from .mounts import mount_fuse, unmount
from .recording import Recorder
from .rules import WELL, Kind, Rules, decide_fate
from .tree import Tree
from .wire import Op, Request

WORKERS: Final = 8
_KINDS: Final = {
    Op.READ: Kind.READ,
    Op.WRITE: Kind.WRITE,
    Op.FALLOCATE: Kind.WRITE,
    Op.FSYNC: Kind.FLUSH,
    Op.FSYNCDIR: Kind.FLUSH,
}
_ALWAYS_WELL: Final = frozenset({Op.INIT, Op.DESTROY, Op.RELEASE, Op.RELEASEDIR, Op.FLUSH, *wire.UNANSWERED})
_CHANGES: Final = frozenset(
    {Op.WRITE, Op.FALLOCATE, Op.SETATTR, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.CREATE}
)


class Command(msgspec.Struct, frozen=True):
    """What a test asks for; what is left out stays as it is."""

    rules: Rules | None = None
    record: str | None = None
    """Begin a log of what happens to `file`, at this path."""
    file: str = ""
    mark: int | None = None
    stop_recording: bool = False
    release: bool = False
    """Begin what is delayed now."""


class State(msgspec.Struct, frozen=True):
    """The answer: what has happened since the mount."""

    requests: dict[str, int]
    """Carried out or failed, by kind."""
    failed: dict[str, int]
    """Failed by the rules, by kind."""
    waiting: int
    """Delayed and not answered yet."""


class Later:
    """Runs things at a time, in threads of its own."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.waiting = 0
        for _ in range(WORKERS):
            threading.Thread(target=self._run, daemon=True).start()

    def at(self, when: float, work: Callable[[], None]) -> None:
        """Run `work` at `when`, of time.monotonic()."""
        with self._change:
            heapq.heappush(self._due, (when, next(self._numbers), work))
            self.waiting += 1
            self._change.notify()

    def release(self) -> None:
        """Run all that waits now."""
        with self._change:
            self._due = [(0.0, number, work) for _, number, work in self._due]
            heapq.heapify(self._due)
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._change.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, work = heapq.heappop(self._due)
            work()
            with self._change:
                self.waiting -= 1


class Server:
    """Answers the kernel's requests on one mount. Its threads share all of it."""

    def __init__(self, fuse: int, tree: Tree) -> None:
        self._fuse, self._tree = fuse, tree
        self._later = Later()
        self._lock = threading.Lock()
        self._rules = WELL
        self._written = 0
        self._requests: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._recorder: Recorder | None = None
        self._recorded_file = ""

    def command(self, command: Command) -> State:
        """Carry out a test's command."""
        with self._lock:
            if command.rules is not None:
                self._rules, self._written = command.rules, 0
            if self._recorder is not None and command.mark is not None:
                self._recorder.mark(command.mark)
            if command.stop_recording or command.record is not None:
                self._recorder = None
            if command.record is not None:
                self._recorder, self._recorded_file = Recorder(Path(command.record)), command.file
            if command.release:
                self._later.release()
            return State(dict(self._requests), dict(self._failed), self._later.waiting)

    def serve(self) -> None:
        """Answer requests until the mount goes."""
        buffer = bytearray(wire.BUFFER_BYTES)
        while True:
            try:
                length = os.readv(self._fuse, [buffer])
            except OSError:
                return
            request = wire.decode_request(memoryview(buffer)[:length])
            if self._take(request):
                buffer = bytearray(wire.BUFFER_BYTES)

    def _take(self, request: Request) -> bool:
        """Answer the request, or see that it is answered later; whether it still needs its buffer."""
        if request.opcode in wire.UNANSWERED:
            return False
        if request.opcode == Op.INIT:
            self._answer(request, 0, [wire.encode_init(request.body)])
            return False
        kind = _KINDS.get(Op(request.opcode), Kind.NAMES) if request.opcode in list(Op) else Kind.NAMES
        with self._lock:
            fate = decide_fate(
                WELL if request.opcode in _ALWAYS_WELL else self._rules,
                kind,
                changes=request.opcode in _CHANGES,
                written_bytes=self._written,
            )
            self._requests[kind] += 1
            self._failed[kind] += bool(fate.errno)
            if request.opcode == Op.WRITE and not fate.errno:
                self._written += len(wire.decode_write(request.body).data)
        begun = 0 if fate.errno else self._record(request)
        if fate.delay_s:
            self._later.at(time.monotonic() + fate.delay_s, lambda: self._carry_out(request, fate.errno, begun))
            return True
        self._carry_out(request, fate.errno, begun)
        return False

    def _carry_out(self, request: Request, errno: int, begun: int) -> None:
        answer: list[bytes | memoryview] = []
        if not errno:
            try:
                answer = self._tree.carry_out(request)
            except OSError as error:
                errno = error.errno or 5
        if begun and not errno and self._recorder is not None:
            self._recorder.done(begun)
        self._answer(request, errno, [] if errno else answer)

    def _record(self, request: Request) -> int:
        """Log what a request is about to do to the recorded file; its number in the log, 0: none of that."""
        recorder = self._recorder
        if recorder is None or request.opcode not in (Op.WRITE, Op.FSYNC, Op.FALLOCATE):
            return 0
        if self._tree.name(request.node) != self._recorded_file:
            return 0
        if request.opcode == Op.WRITE:
            write = wire.decode_write(request.body)
            return recorder.begin_write(write.offset, write.data, durable=write.durable)
        if request.opcode == Op.FSYNC:
            return recorder.begin_flush()
        _, mode, offset, length = wire.decode_fallocate(request.body)
        return recorder.begin_zeros(offset, length) if mode & wire.PUNCH_HOLE else 0

    def _answer(self, request: Request, errno: int, parts: list[bytes | memoryview]) -> None:
        with contextlib.suppress(OSError):  # whoever asked was killed, or the mount is gone
            os.writev(self._fuse, wire.encode_answer(request.unique, errno, parts))


def control(listener: socket.socket, server: Server) -> None:
    """Answer tests' commands, one connection each."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                state = server.command(msgspec.json.decode(line, type=Command))
                stream.write(msgspec.json.encode(state) + b"\n")
                stream.flush()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="A folder that fails on demand.")
    for name in ("mount", "backing", "control"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0005)  # requests wait for a system call's thread, not for a busy one
    tree = Tree(arguments.backing)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(arguments.control))
        listener.listen(8)
        fuse = mount_fuse(arguments.mount, wire.BUFFER_BYTES)
        try:
            server = Server(fuse, tree)
            for _ in range(WORKERS):
                threading.Thread(target=server.serve, daemon=True).start()
            threading.Thread(target=control, args=(listener, server), daemon=True).start()
            print("mounted", flush=True)
            sys.stdin.read()
        finally:
            unmount(arguments.mount)


if __name__ == "__main__":
    main()
