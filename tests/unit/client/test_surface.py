"""What the package offers, and what importing its parts costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import kvtier_client
import pytest
from kvtier_client.aio import AsyncClient

PUBLIC = {
    "WHOLE_BLOCK",
    "Client",
    "Found",
    "Held",
    "Hold",
    "Layout",
    "Page",
    "PageId",
    "Reach",
    "Restored",
    "Stored",
    "Tier",
    "aligned_buffer",
    "aligned_pages",
    "block_hashes",
    "root_hash",
}
CALLS = {
    "close",
    "delete",
    "get",
    "get_into",
    "hold",
    "lookup",
    "misses",
    "pin",
    "prefetch",
    "put",
    "read",
    "release",
    "report",
    "staging",
    "staging_bytes",
}


def test_public_names_are_these() -> None:
    assert set(kvtier_client.__all__) == PUBLIC == set(dir(kvtier_client))
    for name in PUBLIC:
        assert getattr(kvtier_client, name) is not None


@pytest.mark.parametrize("face", [kvtier_client.Client, AsyncClient])
def test_both_faces_offer_these_calls(face: type) -> None:
    assert {name for name in dir(face) if not name.startswith("_")} == CALLS


@pytest.mark.parametrize("name", ["__init__", *sorted(CALLS - {"misses", "staging_bytes"})])
def test_both_faces_take_the_same_arguments(name: str) -> None:
    one, other = (inspect.signature(getattr(face, name)).parameters for face in (kvtier_client.Client, AsyncClient))
    assert one == other


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = kvtier_client.Nothing


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("kvtier_client.client", "torch"),
        ("kvtier_client.client", "asyncio"),
        ("kvtier_client.aio", "torch"),
        ("kvtier_client.sidecar", "numpy"),
        ("kvtier_client.sidecar", "blake3"),
        ("kvtier_client.protocol.messages", "numpy"),
    ],
)
def test_module_loads_without(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
