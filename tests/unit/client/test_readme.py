"""The README's example of the client runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kvtier_client import Client

from tests.unit.client.peer import LAYOUT, ArenaScript, ScriptedAgent

EXAMPLE = re.search(
    r"## Use it from Python.*?```python\n(.*?)```", (Path(__file__).parents[3] / "README.md").read_text(), re.S
)
PAGE_BYTES = 4000
TOKENS = list(range(80))


def kv_of(block: int) -> bytes:
    return bytes([block]) * PAGE_BYTES


def test_example_computes_once_and_restores_then(
    agent: ScriptedAgent, arena: ArenaScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTIER_SOCKET", str(agent.path))
    assert EXAMPLE is not None
    computed: list[int] = []
    for tokens, expected in ((TOKENS[:48], 48), (TOKENS[:48], 0), (TOKENS, 32)):
        computed.clear()
        names: dict[str, Any] = {
            "tokens": tokens,
            "layout": LAYOUT,
            "use": list,
            "compute": computed.extend,
            "kv_of": kv_of,
            "PAGE_BYTES": PAGE_BYTES,
        }
        exec(EXAMPLE[1], names)
        client = names["client"]
        assert isinstance(client, Client)
        assert not client.misses
        client.close()
        assert len(computed) == expected
        assert [bytes(row) for row in names["buffers"]] == [kv_of(block) for block in range(names["restored"].blocks)]
        assert names["good"] == names["restored"].blocks
    assert len(arena.pages) == 5
