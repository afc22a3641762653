"""The program in the demo's pods: a language model whose KV cache is restored from, and saved to, kvtier.

Takes turns over variants of one long prompt (variant 0 is the prompt, variant n the same with another first
token) and prints what each turn took, as one JSON line, last. Time to first token runs from token ids to
the first token, lookup and restore within it; loading the model, a warm-up on an unrelated prompt, and
saving are outside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import asdict, dataclass

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

import torch
from kvtier_client.client import Client
from kvtier_client.connectors.transformers import KVTierCache
from kvtier_client.protocol.messages import Reach
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

WARM_UP_TOKENS = 512
FLUSH_DEADLINE_S = 60.0
PARTS = ("pump", "valve", "filter", "fan", "sensor", "gasket", "bearing", "relay", "nozzle", "motor")
PLACES = (
    "hall A",
    "hall B",
    "the cooling loop",
    "the north roof",
    "rack row 3",
    "the loading dock",
    "the battery room",
)
PEOPLE = ("Ada", "Bruno", "Chen", "Dalia", "Emeka", "Farah", "Goran", "Hana")


@dataclass
class Turn:
    """What one prompt took."""

    variant: int
    ttft_s: float
    restored_tokens: int
    tiers: dict[str, int]
    """Pages restored, by the tier that the replies named."""
    tokens: list[int]
    """The first token, and in the last turn of the prompt those after it."""
    stored_pages: int = 0
    """Pages that are in the pool after this turn, by its own doing or before."""


class Engine:
    """A model, its tokenizer, and the pool's cache beside it."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._client = Client()
        self._kv = KVTierCache(self._client, self._model)

    def prompt(self, tokens: int) -> list[int]:
        """The token ids of the prompt, always the same: the first `tokens` tokens of a log."""
        rng = random.Random(7)
        lines = ["Maintenance log of the data centre.\n"]
        for number in range(1, tokens // 16):
            person, part, place = (rng.choice(words) for words in (PEOPLE, PARTS, PLACES))
            hours = rng.randint(2, 900)
            lines.append(f"Entry {number}: {person} replaced a {part} in {place} after {hours} hours of use.\n")
        ids: list[int] = self._tokenizer("".join(lines))["input_ids"]
        if len(ids) < tokens:
            raise ValueError(f"the log has {len(ids)} tokens, fewer than {tokens}")
        return ids[:tokens]

    def warm_up(self) -> None:
        """Run an unrelated prompt, and ask for it, so that the first turn pays for nothing but itself."""
        ids = [2 + number % 1000 for number in range(WARM_UP_TOKENS)]
        cache, _, _ = self._kv.restore(ids)
        self._forward(self._forward(ids, cache), cache)

    def take_turn(self, variant: int, ids: list[int], *, answer_tokens: int, save: bool) -> Turn:
        """Compute the first token, saving what the cache lacked if asked to, and `answer_tokens - 1` after it."""
        started = time.perf_counter()
        cache, restored, tiers = self._kv.restore(ids)
        tokens = self._forward(ids[restored:], cache)
        ttft_s = time.perf_counter() - started
        stored_pages = self._save(ids, cache, restored) if save else 0
        while len(tokens) < answer_tokens:
            tokens += self._forward(tokens[-1:], cache)
        named = {str(tier): count for tier, count in tiers.items()}
        return Turn(variant, ttft_s, restored, named, tokens, stored_pages)

    def text(self, tokens: list[int]) -> str:
        """What the tokens say."""
        return str(self._tokenizer.decode(tokens))

    def misses(self) -> str:
        """The client's failed calls by cause."""
        return ", ".join(f"{cause}: {count}" for cause, count in self._client.misses.items()) or "none"

    def _save(self, ids: list[int], cache: DynamicCache, restored: int) -> int:
        stored = self._kv.save(ids, cache, restored, reach=Reach.FLUSHED, deadline_s=FLUSH_DEADLINE_S)
        return stored.stored_pages + stored.known_pages if stored.reached is Reach.FLUSHED else 0

    def _forward(self, ids: list[int], cache: DynamicCache) -> list[int]:
        """The token after `ids`, which extend `cache`."""
        with torch.inference_mode():
            output = self._model(torch.tensor([ids]), cache=cache, logits_to_keep=1)
        return [int(output.logits[0, -1].argmax())]


def variant_of(prompt: list[int], variant: int) -> list[int]:
    """The prompt with another first token, which is another prefix from the first block on; 0: the prompt itself."""
    return [prompt[0] + variant, *prompt[1:]]


def main() -> None:
    """Take the turns of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--turns", required=True, help="variants of the prompt, in order, such as 0,1,0")
    parser.add_argument("--save", action="store_true", help="save each variant's KV cache in its last turn")
    parser.add_argument("--prompt-tokens", type=int, default=3200)
    parser.add_argument("--answer-tokens", type=int, default=64, help="computed in the last turn of variant 0")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    variants = [int(variant) for variant in options.turns.split(",")]

    engine = Engine(options.model, options.threads)
    prompt = engine.prompt(options.prompt_tokens)
    engine.warm_up()
    turns = []
    for number, variant in enumerate(variants):
        is_last = variant not in variants[number + 1 :]
        turn = engine.take_turn(
            variant,
            variant_of(prompt, variant),
            answer_tokens=options.answer_tokens if is_last and variant == 0 else 1,
            save=options.save and is_last,
        )
        turns.append(turn)
        print(f"prompt {variant}: first token after {turn.ttft_s:.2f} s, {turn.restored_tokens} tokens restored")
        if len(turn.tokens) > 1:
            print(f"answer: {engine.text(turn.tokens)[:80]!r} ...")
    print(f"failed calls of the client: {engine.misses()}")
    print(json.dumps({"prompt_tokens": len(prompt), "turns": [asdict(turn) for turn in turns]}))


if __name__ == "__main__":
    main()
