"""Several clients at random on a small store, with movers killed meanwhile: nothing read is ever another block's."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest
from kvtier_client.protocol.messages import Reach, Refused

from tests.unit.store.process import StoreProcess, wait_for
from tests.unit.store.rawclient import Held, RawClient, content, data_of, hashes_of

SIZES = (65_536, 20_000, 150_000)
STEPS = 80
KILLS = 4


def random_chain(dice: random.Random) -> list[tuple[bytes, bytes]]:
    """One of some thousand chains that share ancestors, of three page sizes."""
    root = dice.randrange(6)
    path, blocks = str(root), []
    for number in range(dice.randrange(1, 40)):
        if number % 7 == 6:
            path += f".{dice.randrange(3)}"
        hash_ = f"{path}/{number}".encode().ljust(64, b".")
        blocks.append((hash_, content(hash_, SIZES[root % 3])))
    return blocks


class Worker(threading.Thread):
    """A client that puts, gets and compares."""

    def __init__(self, store: StoreProcess, seed: str) -> None:
        super().__init__()
        self._store, self._dice = store, random.Random(seed)
        self.wrong: list[bytes] = []
        self.read = self.stored = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._store.connect() as client:
                for _ in range(STEPS):
                    self._dice.choice([self._put, self._get])(client)
        except BaseException as error:
            self.failure = error

    def _put(self, client: RawClient) -> None:
        blocks = random_chain(self._dice)
        there = client.lookup(hashes_of(blocks)).whole_blocks
        part = blocks[there : there + self._dice.randrange(1, 30)]
        if part:
            parent = blocks[there - 1][0] if there else None
            deadline_ms = self._dice.choice([50, 1000, 10_000])
            reply = client.put(parent, part, reach=self._dice.choice(list(Reach)), deadline_ms=deadline_ms)
            self.stored += 0 if isinstance(reply, Refused) else reply.stored_pages

    def _get(self, client: RawClient) -> None:
        blocks = random_chain(self._dice)
        held = client.get(hashes_of(blocks), deadline_ms=self._dice.choice([1, 50, 5000]))
        assert isinstance(held, Held)
        for place, (hash_, data) in zip(held.places, blocks, strict=False):
            if client.read(place) != data:
                self.wrong.append(hash_)
            self.read += 1
        client.release(held)


@pytest.mark.parametrize("seed", range(2))
def test_clients_at_random_never_read_anything_but_their_blocks(store: StoreProcess, seed: int) -> None:
    workers = [Worker(store, f"{seed}/{number}") for number in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(KILLS):
        workers[0].join(0.5)
        for pid in store.movers()[:1]:
            os.kill(pid, signal.SIGKILL)
    for worker in workers:
        worker.join()
    assert [worker.failure for worker in workers] == [None] * 4
    assert [worker.wrong for worker in workers] == [[]] * 4
    assert sum(worker.stored for worker in workers) > 100
    assert sum(worker.read for worker in workers) > 100
    assert "event=task.failed" not in store.log_text()
    with store.connect() as client:
        blocks = random_chain(random.Random(seed))

        def stored() -> bool:
            reply = client.put(None, blocks, reach=Reach.FLUSHED, deadline_ms=60_000)
            return not isinstance(reply, Refused) and reply.reached is Reach.FLUSHED

        wait_for("the last killed mover is replaced and all is stored", stored)
        assert client.read_all(hashes_of(blocks), deadline_ms=60_000) == data_of(blocks)
    assert store.terminate() == 0
