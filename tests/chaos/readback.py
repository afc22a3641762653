"""Reading back: blocks that were sent are asked for, and what is served is compared bit for bit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from kvtier_client.protocol.messages import PageId, Tier

from tests.chaos.clients import Clients
from tests.chaos.ledger import Ledger, Stretch, Verdict, is_right, judge_chain
from tests.chaos.workload import PageKey

READ_DEADLINE_S: Final = 20.0
ATTEMPTS: Final = 3
"""A busy machine may miss a deadline; what stays absent is lost."""


def read_back(clients: Clients, ledger: Ledger, stretches: Iterable[Stretch], attempts: int = ATTEMPTS) -> Verdict:
    """The verdict on these chains, page by page."""
    verdict = Verdict()
    for stretch in stretches:
        for page in stretch.shape.pages:
            verdict.add(read_stretch(clients, ledger, stretch, page, attempts))
    return verdict


def read_stretch(clients: Clients, ledger: Ledger, stretch: Stretch, page: PageId, attempts: int) -> Verdict:
    """The verdict on one page of each block of a stretch. A page's tier is where it was when it was first served."""
    verdict = Verdict()
    tiers: list[Tier] = []
    shape, chain, start = stretch
    for attempt in range(attempts):
        time.sleep(0.2 * attempt)
        client = clients.of(shape)
        with client.get(shape.fingerprint, chain, pages=(page,), deadline_s=READ_DEADLINE_S) as held:
            keys = [PageKey(shape.name, block, page) for block in chain[start : held.blocks]]
            matches = [is_right(key, view) for key, view in zip(keys, held.views[start:], strict=True)]
            tiers += [Tier(tier) for tier in held.tiers[len(tiers) :]]
            matches = matches[: max(0, held.intact() - start)]
        verdict = judge_chain(ledger, stretch, page, matches, tiers)
        if len(matches) == len(chain) - start or not (verdict.lost_flushed or verdict.lost_dram):
            break
    return verdict
