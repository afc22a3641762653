"""Makes segments look as a crash leaves those that were being written: without their trailers. docs/formats.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TRAILER: Final = b"KVTSUMMA"
_BLOCK: Final = 4096


def unseal(media: Path, share: float) -> str:
    """Of all files with sealed segments below `media`, wipe the trailers of `share`; says what was done.

    The store must not run.
    """
    trailers = [place for file in sorted(media.rglob("*")) if file.is_file() for place in _trailers(file)]
    every = max(1, round(1 / share))
    wiped = trailers[::every]
    for file, offset in wiped:
        with file.open("r+b") as opened:
            opened.seek(offset)
            opened.write(bytes(_BLOCK))
    return f"{len(wiped)} of {len(trailers)} sealed segments unsealed"


def _trailers(file: Path) -> list[tuple[Path, int]]:
    """Where the file's trailers are."""
    with file.open("rb") as opened:
        size = file.stat().st_size
        offset = size - _BLOCK
        if offset < 0:
            return []
        opened.seek(offset)
        return [(file, offset)] if opened.read(len(_TRAILER)) == _TRAILER else []
