"""An agent with an arena, and both faces of the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtier_client import Client

from tests.unit.client.faces import FACES, Face
from tests.unit.client.peer import ArenaScript, ScriptedAgent


@pytest.fixture
def arena(tmp_path: Path) -> ArenaScript:
    return ArenaScript(tmp_path)


@pytest.fixture
def agent(tmp_path: Path, arena: ArenaScript) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(tmp_path / "agent.sock", arena) as agent:
        yield agent


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return FACES[request.param]


@pytest.fixture
def client(agent: ScriptedAgent, face: Face) -> Iterator[Client]:
    with face(agent.path, deadline_s=5) as client:
        yield client
