from __future__ import annotations

from pathlib import Path

import pytest
from kvtier_bench.fio import Reading, lay_down, parse_fio_seconds, read_plainly
from kvtier_bench.unseal import unseal

FIO = """fio: some remark
{"fio version": "fio-3.33", "jobs": [{"read": {"io_bytes": 268435456, "bw_bytes": 536870912}}]}
"""


def test_fio_seconds_are_bytes_over_bandwidth() -> None:
    assert parse_fio_seconds(FIO) == 0.5


def test_fio_that_read_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="read nothing"):
        parse_fio_seconds('{"jobs": [{"read": {"io_bytes": 0, "bw_bytes": 0}}]}')


@pytest.mark.parametrize("shuffled", [False, True])
def test_plain_reads_take_a_file_that_was_laid_down(shuffled: bool) -> None:
    file = Path("/var/tmp") / f"kvtier-test-reads-{shuffled}"
    try:
        lay_down(file, 3 << 20)
        assert file.stat().st_size == 3 << 20
        assert len(set(file.read_bytes()[: 1 << 16])) == 256
        assert read_plainly(file, Reading(1 << 20, 2, shuffled)) > 0
    finally:
        file.unlink(missing_ok=True)


def test_a_share_of_sealed_segments_loses_its_trailer(tmp_path: Path) -> None:
    segment = b"x" * 8192 + b"KVTSUMMA".ljust(4096, b"t")
    (tmp_path / "0.dev").write_bytes(segment * 19 + b"short")
    (tmp_path / "1.dev").write_bytes(segment)
    assert unseal(tmp_path, 0.1) == "2 of 20 sealed segments unsealed"
    unsealed = b"x" * 8192 + bytes(4096)
    assert (tmp_path / "0.dev").read_bytes() == unsealed + segment * 9 + unsealed + segment * 8 + b"short"
    assert (tmp_path / "1.dev").read_bytes() == segment
