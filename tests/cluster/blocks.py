"""The blocks of a prompt, as a client in a pod stores and restores them, compared bit for bit."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Final

from kvtier_client.client import Client
from kvtier_client.protocol.messages import Reach
from kvtier_client.results import Page, Restored

LAYOUT: Final = hashlib.sha256(b"tests/cluster").digest()
PAGE_BYTES: Final = 128 << 10
DEADLINE_S: Final = 5.0
"""On a busy machine; where a miss is expected, callers give a shorter one."""
PUT_DEADLINE_S: Final = 30.0


@dataclass(frozen=True)
class Prompt:
    """The blocks that its name makes."""

    name: str
    blocks: int = 8

    @property
    def hashes(self) -> list[bytes]:
        """Of its blocks, in order."""
        return [hashlib.sha256(f"{self.name}/{number}".encode()).digest() for number in range(self.blocks)]

    def page(self, number: int) -> bytes:
        """The bytes of one block."""
        return random.Random(f"{self.name}/{number}").randbytes(PAGE_BYTES)

    def store(self, client: Client, reach: Reach = Reach.DRAM) -> None:
        """Store all of it. Fails the test when it does not get that far."""
        assert self.is_taken(client, reach), f"{self.name} is not stored: {client.misses}"

    def is_taken(self, client: Client, reach: Reach = Reach.DRAM) -> bool:
        """Whether the cache takes all of it, now."""
        pages = [Page(digest, self.page(number)) for number, digest in enumerate(self.hashes)]
        return client.put(LAYOUT, None, pages, reach=reach, deadline_s=PUT_DEADLINE_S).reached is not None

    def restore(self, client: Client, deadline_s: float = DEADLINE_S) -> Restored:
        """What the cache has of it. Fails the test when a byte of that is wrong."""
        buffers = [bytearray(PAGE_BYTES) for _ in range(self.blocks)]
        restored = client.get_into(LAYOUT, self.hashes, buffers, deadline_s=deadline_s)
        for number in range(restored.blocks):
            assert buffers[number] == self.page(number), f"{self.name}: block {number} is another one"
        return restored

    def is_whole(self, client: Client) -> bool:
        """Whether the cache has all of it."""
        return self.restore(client).blocks == self.blocks
