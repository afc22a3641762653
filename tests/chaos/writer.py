"""A client that keeps storing: one put after another until the store is gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final

from kvtier_client.protocol.messages import Reach
from kvtier_client.results import Page

from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger
from tests.chaos.workload import SHAPES, PutPlan, decide_chain, decide_twin, payload

PUT_DEADLINE_S: Final = 20.0

Acknowledged = Callable[[PutPlan, Reach], None]


def make_pages(plan: PutPlan) -> list[Page]:
    """The pages of the put, with their bytes."""
    return [Page(key.hash, payload(key), key.page) for key in plan.page_keys()]


def put(clients: Clients, ledger: Ledger, plan: PutPlan, pages: list[Page]) -> Reach | None:
    """Send the put and enter the store's answer in the ledger; None: nothing was acknowledged."""
    ledger.expect(plan)
    client = clients.of(plan.shape)
    stored = client.put(plan.shape.fingerprint, plan.parent, pages, reach=plan.reach, deadline_s=PUT_DEADLINE_S)
    if stored.reached is None:
        return None
    reached = Reach(stored.reached)
    ledger.acknowledge(plan, reached, all_new=stored.known_pages == 0)
    return reached


def ignore(_plan: PutPlan, _reach: Reach) -> None:
    """Nobody else wants to know."""


class Writer:
    """Stores in a thread of its own from `start` until a put fails or `join`. One thread may command it."""

    def __init__(
        self, clients: Clients, ledger: Ledger, rng: random.Random, acknowledged: Acknowledged = ignore
    ) -> None:
        """`acknowledged` is called in the writer's thread, after the answer to a put."""
        self._clients = clients
        self._ledger = ledger
        self._rng = rng
        self._acknowledged = acknowledged
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
            shape = self._rng.choice(SHAPES)
            plans = decide_chain(self._rng, shape, self._ledger.parents_for(shape))
            for plan in (*plans, *decide_twin(plans, self._rng)):
                if self._stopping or not self._store(plan):
                    return

    def _store(self, plan: PutPlan) -> bool:
        pages = make_pages(plan)
        with self._change:
            self._begun += 1
            self._in_flight = True
            self._change.notify_all()
        reached = put(self._clients, self._ledger, plan, pages)
        with self._change:
            self._in_flight = False
            self._unanswered = None if reached else plan
            self._change.notify_all()
        if reached is None:
            return False
        self._acknowledged(plan, reached)
        return True
