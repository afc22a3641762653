"""Sizes: Kubernetes quantities in, bytes inside, quantities out. The one place that converts them."""

from __future__ import annotations

import math
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity
from kvtier_crds.words import BINARY_UNITS


def parse_bytes(text: str) -> int:
    """Bytes of a quantity such as `8Gi` or `500M`, rounded up.

    Raises ValueError when it is none.
    """
    return math.ceil(_parse(text))


def base_units(resource: str, quantity: str) -> int:
    """A quantity of a pod's or node's resource: thousandths of a CPU, bytes, or pieces, rounded up.

    Raises ValueError when it is none.
    """
    return math.ceil(_parse(quantity) * 1000 if resource == "cpu" else _parse(quantity))


def exact(size: int) -> str:
    """The quantity of exactly `size` bytes, in the canonical form that the API server keeps."""
    for unit, factor in BINARY_UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _parse(text: str) -> Decimal:
    amount: Decimal = parse_quantity(text)  # type: ignore[no-untyped-call]
    return amount
