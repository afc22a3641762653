from __future__ import annotations

import re

import pytest
from kvtier_agent.config import parse_quantity
from kvtier_crds.fields import QUANTITY_PATTERN
from kvtier_crds.words import about
from kvtier_operator.quantities import base_units, exact, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("8Gi", 8 << 30), ("500M", 500_000_000), ("1.5Ti", 3 << 39), ("0.0001k", 1)],
)
def test_quantity_is_read_in_bytes_rounded_up(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("unit", ["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"])
@pytest.mark.parametrize("amount", ["8", "1.5"])
def test_operator_and_store_read_a_quantity_alike_that_the_schema_allows(amount: str, unit: str) -> None:
    assert re.fullmatch(QUANTITY_PATTERN, amount + unit)
    assert parse_bytes(amount + unit) - parse_quantity(amount + unit) in (0, 1), "the one rounds up"


@pytest.mark.parametrize("text", ["", "Gi", "8Xi", "eight"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1, "1"), (1024, "1Ki"), (8 << 30, "8Gi"), (1536 << 20, "1536Mi"), ((1 << 30) + 1, "1073741825")],
)
def test_exact_quantity_uses_the_largest_unit_that_divides(size: int, text: str) -> None:
    assert exact(size) == text
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1023, "1023"), (1 << 30, "1Gi"), (13_421_772_800, "12.5Gi"), (150 << 30, "150Gi"), (1 << 42, "4Ti")],
)
def test_quantity_to_read_has_three_digits(size: int, text: str) -> None:
    assert about(size) == text


@pytest.mark.parametrize(
    ("resource", "quantity", "units"),
    [("cpu", "250m", 250), ("cpu", "2", 2000), ("memory", "1Gi", 1 << 30), ("hugepages-2Mi", "4Mi", 4 << 20)],
)
def test_resource_is_counted_in_base_units(resource: str, quantity: str, units: int) -> None:
    assert base_units(resource, quantity) == units
