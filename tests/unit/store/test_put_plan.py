"""How a put is cut into batches."""

from __future__ import annotations

import pytest
from kvtier_agent.store.put_plan import PutPlan, batches


def plan(*sizes: int) -> PutPlan:
    return PutPlan([(bytes([number]) * 16, 0, 0, 0, size) for number, size in enumerate(sizes)], [0] * len(sizes), [])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([4096] * 3, [(0, 3)], id="what-fits-is-one"),
        pytest.param([4096] * 5, [(0, 4), (4, 5)], id="no-more-pages-than-allowed"),
        pytest.param([9000] * 3, [(0, 1), (1, 2), (2, 3)], id="no-more-slot-bytes-than-allowed"),
        pytest.param([65536, 4096], [(0, 1), (1, 2)], id="a-page-larger-than-a-batch-is-one"),
        pytest.param([4096, 5000, 8192, 100], [(0, 1), (1, 3), (3, 4)], id="one-class-of-slots-each"),
    ],
)
def test_put_is_cut_into_batches_of_one_class(sizes: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(batches(plan(*sizes), 0, 16384, 4)) == expected
