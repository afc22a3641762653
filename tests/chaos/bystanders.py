"""The pair of clients that map the arena through every kill: one reads on, one is stopped (SIGSTOP) and holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.chaos.bystander import Tally, write_chains
from tests.chaos.bystander_process import BystanderProcess
from tests.chaos.ledger import Ledger


class Bystanders:
    """Both clients; absent before `meet` and after `part`. Not thread-safe."""

    def __init__(self, sockets: Mapping[str, Path], chains_file: Path, ledger: Ledger) -> None:
        self._sockets = sockets
        self._chains_file = chains_file
        self._ledger = ledger
        self._reader: BystanderProcess | None = None
        self._sleeper: BystanderProcess | None = None
        self._past: list[Tally] = []
        self._sleeper_seen = Tally()

    def meet(self) -> None:
        """Start both; one reads, the other holds what it can and is stopped. Does nothing when they are there."""
        write_chains(self._chains_file, self._ledger)
        if self._reader is None:
            self._reader = BystanderProcess(self._sockets, self._chains_file, "read")
        if self._sleeper is None:
            self._sleeper = BystanderProcess(self._sockets, self._chains_file, "hold")
            self._sleeper_seen = self._sleeper.check()
            self._sleeper.stop()

    def wake_sleeper(self) -> None:
        """Let the stopped client compare what it held, hold something new, and be stopped again."""
        if self._sleeper is not None:
            self._sleeper.resume()
            self._sleeper_seen = self._sleeper.check()
            self._sleeper.stop()

    def part(self) -> None:
        """Let the reader have its last word, and end both: the stopped one without waking it."""
        if self._reader is not None:
            self._past.append(self._reader.finish())
        if self._sleeper is not None:
            self._past.append(self._sleeper_seen)
        self.end()

    def end(self) -> None:
        """Kill both. May be repeated."""
        for process in (self._reader, self._sleeper):
            if process is not None:
                process.end()
        self._reader, self._sleeper = None, None

    def seen(self) -> Tally:
        """What those that parted saw, in all."""
        return Tally(
            served=sum(tally.served for tally in self._past),
            stale=sum(tally.stale for tally in self._past),
            wrong=sum(tally.wrong for tally in self._past),
        )
