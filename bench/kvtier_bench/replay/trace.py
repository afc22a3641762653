"""A trace of requests: JSON lines with `hash_ids`, one id for each block of the prompt.

Equal id means equal prefix up to there, as in the traces that Mooncake published (Qin et al., 2024).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec


class TraceError(Exception):
    """The trace cannot be used; the message names the line and what is wrong with it."""


class Trace(NamedTuple):
    """Requests in order, ids replaced by block numbers from 0 on."""

    requests: list[list[int]]
    blocks: int
    """How many different ones there are."""
    asked: int
    """Blocks over all requests."""


class _Line(msgspec.Struct):
    hash_ids: list[int | str]


def read_trace(path: Path) -> Trace:
    """Read and check the file.

    Raises TraceError, also where an id stands behind two different ones: it cannot stand for one prefix then.
    """
    decoder = msgspec.json.Decoder(_Line)
    numbers: dict[int | str, int] = {}
    parents: list[int | None] = []
    requests: list[list[int]] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_request(decoder, line, f"{path}:{number}", numbers, parents))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    asked = sum(map(len, requests))
    if not asked:
        raise TraceError(f"{path}: no request asks for a block")
    return Trace(requests, len(numbers), asked)


def _request(
    decoder: msgspec.json.Decoder[_Line],
    line: bytes,
    place: str,
    numbers: dict[int | str, int],
    parents: list[int | None],
) -> list[int]:
    try:
        ids = decoder.decode(line).hash_ids
    except msgspec.MsgspecError as error:
        raise TraceError(f'{place}: expected an object like {{"hash_ids": [1, 2]}}: {error}') from error
    chain: list[int] = []
    parent: int | None = None
    for id_ in ids:
        block = numbers.setdefault(id_, len(numbers))
        if block == len(parents):
            parents.append(parent)
        elif parents[block] != parent:
            raise TraceError(f"{place}: id {id_!r} stands behind another id than before, so it names no prefix")
        chain.append(block)
        parent = block
    return chain
