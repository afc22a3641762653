"""A client that keeps storing, and now and then deletes: one call after another until the store is gone."""

from __future__ import annotations

import random
import threading
from typing import Final, Protocol

from kvtier_client.protocol.messages import Reach
from kvtier_client.results import Page

from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger
from tests.chaos.workload import SHAPES, BlockKey, PutPlan, Shape, decide_chain, decide_twin, payload

PUT_DEADLINE_S: Final = 20.0

DELETE_SHARE: Final = 0.06
"""How often a writer deletes instead of storing."""


class Witness(Protocol):
    """Who wants to know what the store has acknowledged. Called in writers' threads."""

    def stored(self, plan: PutPlan, reach: Reach) -> None:
        """A put was answered."""

    def deleting(self, blocks: set[BlockKey]) -> None:
        """These are about to be deleted."""

    def deleted(self, blocks: set[BlockKey]) -> None:
        """The deletion of these was answered."""


def make_pages(plan: PutPlan) -> list[Page]:
    """The pages of the put, with their bytes."""
    return [Page(key.hash, payload(key), key.page) for key in plan.page_keys()]


def put(
    clients: Clients, ledger: Ledger, plan: PutPlan, pages: list[Page], deadline_s: float = PUT_DEADLINE_S
) -> Reach | None:
    """Send the put and enter the store's answer in the ledger; None: nothing was acknowledged."""
    ledger.expect(plan)
    client = clients.of(plan.shape)
    stored = client.put(plan.shape.fingerprint, plan.parent, pages, reach=plan.reach, deadline_s=deadline_s)
    if stored.reached is None:
        return None
    reached = Reach(stored.reached)
    ledger.acknowledge(plan, reached, all_new=stored.known_pages == 0)
    return reached


class Nobody:
    """A witness that does not care."""

    def stored(self, plan: PutPlan, reach: Reach) -> None:
        """Nothing."""

    def deleting(self, blocks: set[BlockKey]) -> None:
        """Nothing."""

    def deleted(self, blocks: set[BlockKey]) -> None:
        """Nothing."""


class Writer:
    """Stores in a thread of its own from `start` until a put fails or `join`. One thread may command it."""

    def __init__(self, clients: Clients, ledger: Ledger, rng: random.Random, witness: Witness) -> None:
        """Stores in the pools that `clients` has."""
        self._clients = clients
        self._shapes = [shape for shape in SHAPES if shape.pool in clients.pools]
        self._ledger = ledger
        self._rng = rng
        self._witness = witness
        self._change = threading.Condition()
        self._begun = 0
        self._in_flight = False
        self._stopping = False
        self._unanswered: PutPlan | None = None
        self._thread = threading.Thread()

    def start(self) -> None:
        """Begin to store."""
        self._begun, self._stopping, self._unanswered = 0, False, None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def wait_begun(self, puts: int, deadline_s: float) -> bool:
        """Wait until so many puts have begun since the start; False: the deadline or the writer's end came first."""
        with self._change:
            self._change.wait_for(lambda: self._begun >= puts or self._unanswered is not None, deadline_s)
            return self._begun >= puts

    @property
    def begun(self) -> int:
        """Puts begun since the start."""
        return self._begun

    @property
    def in_flight(self) -> bool:
        """Whether a put was sent and is not answered."""
        return self._in_flight

    def stop(self) -> None:
        """Begin no further put."""
        self._stopping = True

    def join(self) -> PutPlan | None:
        """Stop, wait for the last put, and return it if nothing of it was acknowledged."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()
        return self._unanswered

    def _run(self) -> None:
        while True:
            shape = self._rng.choice(self._shapes)
            if self._rng.random() < DELETE_SHARE and not self._delete_one(shape):
                return
            plans = decide_chain(self._rng, shape, self._ledger.parents_for(shape))
            twins = (it for it in decide_twin(plans, self._rng) if it.shape in self._shapes)
            for plan in (*plans, *twins):
                if self._stopping or not self._store(plan):
                    return

    def _store(self, plan: PutPlan) -> bool:
        pages = make_pages(plan)
        with self._change:
            self._begun += 1
            self._in_flight = True
            self._change.notify_all()
        reached = put(self._clients, self._ledger, plan, pages)
        doomed = plan.parent is not None and self._ledger.is_doomed(plan.shape, plan.parent)
        with self._change:
            self._in_flight = False
            self._unanswered = None if reached or doomed else plan
            self._change.notify_all()
        if reached is not None and not self._ledger.is_doomed(plan.shape, plan.blocks[0]):
            self._witness.stored(plan, reached)
        return reached is not None or doomed

    def _delete_one(self, shape: Shape) -> bool:
        """Delete a block, if there is one, with all below it; False: the store is gone."""
        candidates = self._ledger.parents_for(shape)
        if not candidates:
            return True
        block = self._rng.choice(candidates)
        self._witness.deleting(self._ledger.expect_delete(shape, block))
        if not self._clients.of(shape).delete(shape.fingerprint, [block], deadline_s=PUT_DEADLINE_S):
            return False
        self._witness.deleted(self._ledger.acknowledge_delete(shape, block))
        return True
