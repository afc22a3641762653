"""What a faulty device does to a request: the rules that hold now, and what follows from them. Pure."""

from __future__ import annotations

import errno
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What a request is to a device."""

    READ = "read"
    WRITE = "write"
    FLUSH = "flush"
    NAMES = "names"
    """Looking up, making, removing and renaming files, and their sizes."""


class Rules(msgspec.Struct, frozen=True):
    """How the device behaves. The default is a device that is well."""

    delay_s: dict[Kind, float] = {}
    """Each request of a kind begins so much later, and is answered after that."""
    errno: dict[Kind, int] = {}
    """Each request of a kind fails with this."""
    read_only: bool = False
    """What changes anything fails with EROFS, as on a file system that was remounted after an error."""
    gone: bool = False
    """Every request fails: with ENOENT for names, with EIO for what was open."""
    full_after_bytes: int | None = None
    """Once so many bytes are written, each further write fails with ENOSPC. None: no limit."""


WELL = Rules()


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one request."""

    delay_s: float = 0.0
    errno: int = 0
    """0: it is carried out."""


def decide_fate(rules: Rules, kind: Kind, *, changes: bool, written_bytes: int = 0) -> Fate:
    """What becomes of a request; `written_bytes` were written before it, since the rules were set."""
    delay_s = rules.delay_s.get(kind, 0.0)
    if rules.gone:
        return Fate(delay_s, errno.ENOENT if kind is Kind.NAMES else errno.EIO)
    if kind in rules.errno:
        return Fate(delay_s, rules.errno[kind])
    if changes and rules.read_only:
        return Fate(delay_s, errno.EROFS)
    full = rules.full_after_bytes is not None and written_bytes >= rules.full_after_bytes
    if full and kind is Kind.WRITE:
        return Fate(delay_s, errno.ENOSPC)
    return Fate(delay_s)
