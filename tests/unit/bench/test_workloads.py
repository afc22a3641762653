from __future__ import annotations

from kvtier_bench.conversations import BLOCKS_PER_TURN, TURNS, Conversations
from kvtier_bench.workload import HASH_BYTES, Payloads, chain_hashes, growth_turns


def test_chains_differ_by_seed_and_part_alone() -> None:
    chain = chain_hashes(3, 10)
    assert chain == chain_hashes(3, 10)
    assert chain[:5] == chain_hashes(3, 5)
    assert len({*chain, *chain_hashes(4, 10), *chain_hashes(3, 10, part=1)}) == 30
    assert {len(block) for block in chain} == {HASH_BYTES}


def test_payloads_tell_pages_apart() -> None:
    payloads = Payloads(4096)
    hashes = chain_hashes(1, 50)
    views = [payloads.of(block) for block in hashes]
    assert {view.nbytes for view in views} == {4096}
    assert payloads.wrong(hashes, views) == 0
    assert payloads.wrong(hashes, [views[1], views[0], *views[2:]]) == 2
    assert Payloads(4096).of(hashes[0]) == views[0]


def test_growth_interleaves_chains_in_every_turn() -> None:
    assert growth_turns(2, 3, 4) == [(0, 0, 4), (1, 0, 4), (0, 4, 8), (1, 4, 8), (0, 8, 12), (1, 8, 12)]


def test_conversations_repeat_and_only_grow() -> None:
    first, again = Conversations(), Conversations()
    requests = [first.next() for _ in range(5000)]
    assert requests == [again.next() for _ in range(5000)]
    blocks: dict[int, int] = {}
    for request in requests:
        assert request.blocks == blocks.get(request.conversation, 0) + BLOCKS_PER_TURN
        blocks[request.conversation] = request.blocks
    assert max(blocks.values()) <= TURNS * BLOCKS_PER_TURN
    assert len(blocks) > 100
