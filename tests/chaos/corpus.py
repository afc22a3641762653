"""What tests of faults begin with: chains of every layout, acknowledged as flushed; and the ways to nvme alone."""

from __future__ import annotations

import random
from dataclasses import replace

from kvtier_client.protocol.messages import Reach

from tests.chaos.clients import Clients
from tests.chaos.ledger import Verdict
from tests.chaos.scene import Scene
from tests.chaos.workload import SHAPES, PutPlan, decide_chain
from tests.chaos.writer import make_pages, put


def store_flushed(scene: Scene, rng: random.Random, chains_per_shape: int = 3) -> list[PutPlan]:
    """Store chains of every layout, and see that all of it is acknowledged as flushed."""
    plans = []
    with Clients(scene.place.sockets) as clients:
        for shape in SHAPES:
            for _ in range(chains_per_shape):
                chain = decide_chain(rng, shape, scene.ledger.parents_for(shape))
                plans += [replace(plan, reach=Reach.FLUSHED) for plan in chain]
                for plan in plans[-len(chain) :]:
                    assert put(clients, scene.ledger, plan, make_pages(plan)) is Reach.FLUSHED
    return plans


def lose_memory(scene: Scene) -> None:
    """Kill the store and empty the arena, so that nvme alone can serve."""
    scene.kill()
    scene.lose_node_memory()


def restart(scene: Scene) -> Verdict:
    """Start the store and read all back; where losses are expected, each chain is asked for once."""
    scene.start()
    return scene.read_back(attempts=1)
