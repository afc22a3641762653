"""What the package offers, and what importing its parts costs."""

from __future__ import annotations

import subprocess
import sys

import kvtier_client
import pytest

PUBLIC = {
    "WHOLE_BLOCK",
    "Client",
    "Found",
    "Held",
    "Layout",
    "Page",
    "PageId",
    "Reach",
    "Restored",
    "Stored",
    "Tier",
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
    "release",
    "report",
    "staging",
}


def test_public_names_are_these() -> None:
    assert set(kvtier_client.__all__) == PUBLIC == set(dir(kvtier_client))
    for name in PUBLIC:
        assert getattr(kvtier_client, name) is not None


def test_client_offers_these_calls() -> None:
    assert {name for name in vars(kvtier_client.Client) if not name.startswith("_")} == CALLS


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = kvtier_client.Nothing


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("kvtier_client.client", "torch"),
        ("kvtier_client.sidecar", "numpy"),
        ("kvtier_client.sidecar", "blake3"),
        ("kvtier_client.protocol.messages", "numpy"),
    ],
)
def test_module_loads_without(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
