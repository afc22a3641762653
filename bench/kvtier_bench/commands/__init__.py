"""Subcommands of `kvtier`, a module each. A new one is added to COMMANDS."""

from __future__ import annotations

from typing import Final

from .bench import COMMAND as BENCH
from .command import Command
from .replay import COMMAND as REPLAY

COMMANDS: Final[tuple[Command, ...]] = (BENCH, REPLAY)
