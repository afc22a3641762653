"""Reading back: every block that was ever sent is asked for, and what is served is compared bit for bit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import PageId, Tier

from tests.chaos.ledger import Ledger, Verdict, is_right, judge_chain
from tests.chaos.workload import SHAPES, BlockHash, PageKey, Shape

READ_DEADLINE_S: Final = 20.0
ATTEMPTS: Final = 3
"""A busy machine may miss a deadline; what stays absent is lost."""


def read_all(client: Client, ledger: Ledger, attempts: int = ATTEMPTS) -> Verdict:
    """The verdict on every chain of every layout, page by page."""
    verdict = Verdict()
    for shape in SHAPES:
        for chain in ledger.chains(shape):
            for page in shape.pages:
                verdict.add(read_chain(client, ledger, shape, chain, page, attempts))
    return verdict


def read_chain(
    client: Client, ledger: Ledger, shape: Shape, chain: Sequence[BlockHash], page: PageId, attempts: int
) -> Verdict:
    """The verdict on one page of each block of a chain. A page's tier is where it was when it was first served."""
    verdict = Verdict()
    tiers: list[Tier] = []
    for attempt in range(attempts):
        time.sleep(0.2 * attempt)
        with client.get(shape.fingerprint, chain, pages=(page,), deadline_s=READ_DEADLINE_S) as held:
            keys = [PageKey(shape.name, block, page) for block in chain[: held.blocks]]
            matches = [is_right(key, view) for key, view in zip(keys, held.views, strict=True)]
            tiers += [Tier(tier) for tier in held.tiers[len(tiers) :]]
            matches = matches[: held.intact()]
        verdict = judge_chain(ledger, shape, chain, page, matches, tiers)
        if len(matches) == len(chain) or not (verdict.lost_flushed or verdict.lost_dram):
            break
    return verdict
