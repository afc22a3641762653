"""The store's absence is what these tests are about: clients need not report it each time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults import device, place

__all__ = ["device", "place"]


@pytest.fixture(autouse=True)
def quiet_client() -> Iterator[None]:
    log = logging.getLogger("kvtier.client")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)
