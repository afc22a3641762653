from __future__ import annotations

import pytest
from kvtier_bench.tracing import Read, parse_trace, pieces

TRACE = """\
901 preadv(7</var/tmp/m/1.seg>, [{iov_base=""..., iov_len=1048576}, {iov_base=""..., iov_len=1048576}], 2, 8192) = 2097152
902 preadv(8</var/tmp/m/2.seg>,  <unfinished ...>
901 preadv(7</var/tmp/m/1.seg>, [{iov_base=""..., iov_len=4096}], 1, 2105344 <unfinished ...>
902 <... preadv resumed>[{iov_base=""..., iov_len=65536}], 1, 0) = 65536
901 <... preadv resumed>) = 4096
903 pread64(9</etc/hosts>, ""..., 4096, 12) = 187
904 preadv2(7</var/tmp/m/1.seg>, [{iov_base=""..., iov_len=4096}], 1, 40960, RWF_NOWAIT) = -1 EAGAIN (Resource temporarily unavailable)
905 preadv2(7</var/tmp/m/1.seg>, [{iov_base=""..., iov_len=4096}], 1, 81920, 0) = 4096
901 +++ exited with 0 +++
"""  # noqa: E501


def test_trace_yields_the_reads_that_succeeded() -> None:
    assert parse_trace(TRACE.splitlines()) == [
        Read("/var/tmp/m/1.seg", 8192, 2097152),
        Read("/var/tmp/m/2.seg", 0, 65536),
        Read("/var/tmp/m/1.seg", 2105344, 4096),
        Read("/etc/hosts", 12, 187),
        Read("/var/tmp/m/1.seg", 81920, 4096),
    ]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([], 0),
        ([Read("a", 0, 10)], 1),
        ([Read("a", 10, 10), Read("a", 0, 10)], 1),
        ([Read("a", 0, 10), Read("a", 11, 10)], 2),
        ([Read("a", 0, 10), Read("b", 10, 10)], 2),
        ([Read("a", 0, 30), Read("a", 5, 5), Read("a", 30, 1)], 1),
    ],
    ids=["none", "one", "adjacent, in any order", "a gap", "two files", "overlapping"],
)
def test_pieces_are_parts_without_a_gap(reads: list[Read], expected: int) -> None:
    assert pieces(reads) == expected
