"""Sizes: Kubernetes quantities in, bytes inside, quantities out. The one place that converts them."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from kubernetes.utils.quantity import parse_quantity

_UNITS: Final = tuple((f"{letter}i", 1024**power) for power, letter in reversed(list(enumerate("KMGTP", 1))))


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
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def about(size: int) -> str:
    """A quantity to read, to three digits, such as `12.5Gi`; `0` for nothing."""
    for unit, factor in _UNITS:
        if size >= factor:
            value = size / factor
            digits = 0 if value >= 100 else 1
            return f"{value:.{digits}f}".removesuffix(".0") + unit
    return str(size)


def _parse(text: str) -> Decimal:
    amount: Decimal = parse_quantity(text)  # type: ignore[no-untyped-call]
    return amount
