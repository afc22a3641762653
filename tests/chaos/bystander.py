"""Clients that map the arena while the store is killed: one that reads all the time, one that sleeps on what it holds.

A process each, since one of them is stopped. Run as `python -m tests.chaos.bystander SOCKETS CHAINS read|hold`, where
SOCKETS is a JSON map by pool and CHAINS a file that is replaced as more is stored. Commands are lines on stdin,
answers are JSON lines on stdout.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from kvtier_client.protocol.messages import PageId
from kvtier_client.results import Held

from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger, is_right
from tests.chaos.workload import SHAPE_BY_NAME, SHAPES, BlockHash, PageKey

READ_PAUSE_S: Final = 0.004
"""Between reads, to leave the processors to the store."""
READ_DEADLINE_S: Final = 5.0


class Chain(msgspec.Struct, frozen=True):
    """One page per block of one chain, as a bystander asks for it."""

    shape: str
    page: PageId
    hashes: list[bytes]


class Tally(msgspec.Struct):
    """What a bystander has seen since its start."""

    served: int = 0
    stale: int = 0
    """Pages whose generation no longer stood: misses."""
    wrong: int = 0
    """Pages with other bytes although their generation stood."""


def write_chains(path: Path, ledger: Ledger) -> None:
    """Replace the file that bystanders choose their reads from."""
    chains = [
        Chain(shape.name, page, list(chain))
        for shape in SHAPES
        for page in shape.pages
        for chain in ledger.chains(shape)
    ]
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.msgpack.encode(chains))
    fresh.replace(path)


def read_chains(path: Path) -> list[Chain]:
    """The file's chains."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Chain])


def check_held(chain: Chain, held: Held, tally: Tally) -> None:
    """Compare what is held in place. The generations are asked for last, as any reader must."""
    keys = [PageKey(chain.shape, BlockHash(block), chain.page) for block in chain.hashes[: held.blocks]]
    matches = [is_right(key, view) for key, view in zip(keys, held.views, strict=True)]
    intact = held.intact()
    tally.served += sum(matches[:intact])
    tally.wrong += intact - sum(matches[:intact])
    tally.stale += len(matches) - intact


def get(clients: Clients, chain: Chain) -> Held:
    """Hold the chain's leading blocks."""
    shape = SHAPE_BY_NAME[chain.shape]
    return clients.of(shape).get(shape.fingerprint, chain.hashes, pages=(chain.page,), deadline_s=READ_DEADLINE_S)


def read_until_told(clients: Clients, chains_file: Path, rng: random.Random) -> None:
    """Read random chains until stdin ends, then say what was seen."""
    told = threading.Thread(target=sys.stdin.read, daemon=True)
    told.start()
    tally = Tally()
    known: tuple[int, list[Chain]] = (0, [])
    while told.is_alive():
        time.sleep(READ_PAUSE_S)
        changed = chains_file.stat().st_mtime_ns
        if changed != known[0]:
            known = changed, read_chains(chains_file)
        if known[1]:
            chain = rng.choice(known[1])
            with get(clients, chain) as held:
                check_held(chain, held, tally)
    say(tally)


def hold_when_told(clients: Clients, chains_file: Path, rng: random.Random) -> None:
    """At each line on stdin: check what was held since the last one, say it, and hold something new."""
    tally = Tally()
    held: list[tuple[Chain, Held]] = []
    for _ in sys.stdin:
        for chain, holding in held:
            check_held(chain, holding, tally)
            holding.release()
        chains = read_chains(chains_file)
        held = [(chain, get(clients, chain)) for chain in rng.sample(chains, min(8, len(chains)))]
        say(tally)


def say(tally: Tally) -> None:
    """One line on stdout."""
    print(json.dumps(msgspec.structs.asdict(tally)), flush=True)


def main(arguments: Iterable[str]) -> None:
    """Run one bystander."""
    sockets, chains_file, mode = arguments
    behaviours = {"read": read_until_told, "hold": hold_when_told}
    logging.getLogger("kvtier.client").setLevel(logging.ERROR)  # the store's absence is what this is about
    by_pool = {pool: Path(path) for pool, path in msgspec.json.decode(sockets, type=dict[str, str]).items()}
    with Clients(by_pool) as clients:
        behaviours[mode](clients, Path(chains_file), random.Random(time.monotonic_ns()))


if __name__ == "__main__":
    main(sys.argv[1:])
