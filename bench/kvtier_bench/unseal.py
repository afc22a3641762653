"""Makes segments look as a crash leaves those that were being written: without their trailers. docs/formats.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

_MAGIC: Final = np.frombuffer(b"KVTSUMMA", dtype=np.uint64)[0]
_PAGE: Final = 4096
_READ_BYTES: Final = 16 << 20


def unseal(media: Path, share: float) -> str:
    """Of all sealed segments in files below `media`, wipe the trailers of `share`; says what was done.

    The store must not run.
    """
    trailers = [(file, at) for file in sorted(media.rglob("*")) if file.is_file() for at in _trailers(file)]
    wiped = trailers[:: max(1, round(1 / share))]
    for file, offset in wiped:
        with file.open("r+b") as opened:
            opened.seek(offset)
            opened.write(bytes(_PAGE))
    return f"{len(wiped)} of {len(trailers)} sealed segments unsealed"


def _trailers(file: Path) -> Iterator[int]:
    """Where the file's trailers are: pages that begin with their magic."""
    with file.open("rb") as opened:
        at = 0
        while data := opened.read(_READ_BYTES):
            pages = np.frombuffer(data[: len(data) // _PAGE * _PAGE], dtype=np.uint64).reshape(-1, _PAGE // 8)
            yield from (at + int(page) * _PAGE for page in np.flatnonzero(pages[:, 0] == _MAGIC))
            at += len(data)
