"""The default policy against the plain one, on requests that repeat as conversations do."""

from __future__ import annotations

import random

from kvtier_index import Index

from tests.unit.index.pool import KEY, LAYOUT, SLOT, Pool


def hash_of(number: int) -> bytes:
    return number.to_bytes(32, "little")


def requests(dice: random.Random, count: int) -> list[list[bytes]]:
    """Long prompts that are never seen again, between conversations that grow by a turn at a time."""
    conversations: list[list[bytes]] = [[] for _ in range(40)]
    made: list[list[bytes]] = []
    for number in range(count):
        if dice.random() < 0.5:
            made.append([hash_of((number << 20) + block) for block in range(60)])
            continue
        chain = dice.choice(conversations)
        chain += [hash_of((number << 20) + block) for block in range(3)]
        made.append(list(chain))
        if len(chain) > 30:
            chain.clear()
    return made


def hits(policy: str, capacity: int, asked: list[list[bytes]]) -> int:
    """Blocks that were there, over all requests."""
    index = Index(policy)
    index.add_chunk(1, SLOT, capacity, 1 << 20, 4104, 512, b"")
    found = 0
    for number, hashes in enumerate(asked):
        held = index.hold(LAYOUT, hashes, [KEY], float(number))
        known = held.blocks
        found += known
        held.release()
        pages = [(hash_, *KEY, SLOT) for hash_ in hashes[known:]]
        above = hashes[known - 1] if known else None
        taken, _, _ = index.reserve(LAYOUT, above, pages, 0, len(pages), float(number), 1 << 40)
        index.commit([page for _, page in taken], b"d" * 16 * len(taken))
    index.check()
    return found


def test_default_policy_keeps_what_returns_rather_than_what_was_used_last() -> None:
    asked = requests(random.Random(1), 2500)
    plain, learned = (hits(policy, 400, asked) for policy in ("lru", "default"))
    assert learned > 2 * plain


def test_blocks_of_conversations_are_worth_more_than_long_prompts_seen_once() -> None:
    pool = Pool(400, "default")
    asked = requests(random.Random(2), 1500)
    for number, hashes in enumerate(asked):
        held = pool.index.hold(LAYOUT, hashes, [KEY], float(number))
        known = held.blocks
        held.release()
        pages = [(hash_, *KEY, SLOT) for hash_ in hashes[known:]]
        above = hashes[known - 1] if known else None
        taken, _, _ = pool.index.reserve(LAYOUT, above, pages, 0, len(pages), float(number), 1 << 40)
        pool.index.commit([page for _, page in taken], b"d" * 16 * len(taken))
    once = next(hashes for hashes in reversed(asked) if len(hashes) == 60)
    turns = next(hashes for hashes in reversed(asked) if 6 < len(hashes) <= 24)
    worth = [
        pool.index.worth(pool.index.chain_of(LAYOUT, hashes[5], [KEY[:2]])[-1:] or [0])[0] for hashes in (once, turns)
    ]
    assert worth[1] > 2 * worth[0] > 0
