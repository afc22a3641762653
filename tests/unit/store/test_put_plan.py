"""What a put asks for: each page's parent, and the batches that it is cut into."""

from __future__ import annotations

import pytest
from kvtier_agent.store.put_plan import PutPlan, batches, check_put
from kvtier_client.protocol.messages import PageId, Put, PutPage


def plan(*sizes: int) -> PutPlan:
    pages = [(bytes([number]) * 16, 0, 0, 0, size) for number, size in enumerate(sizes)]
    return PutPlan(pages, [None] * len(sizes), [0] * len(sizes), [])


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


@pytest.mark.parametrize("parent", [None, b"p" * 16], ids=["root", "further-on"])
def test_parent_of_a_page_is_the_block_before_its_own(parent: bytes | None) -> None:
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    pages = [
        PutPage(a, 0, 9),
        PutPage(a, 9, 9, PageId(1)),
        PutPage(b, 18, 9),
        PutPage(c, 27, 9),
        PutPage(c, 36, 9, PageId(1)),
    ]
    plan = check_put(Put(1, b"L" * 32, parent, pages), 4096)
    assert plan.parents == [parent, parent, a, b, b]
    assert plan.keys == [(0, 0, 0), (1, 0, 0)]
    assert plan.offsets == [0, 9, 18, 27, 36]
