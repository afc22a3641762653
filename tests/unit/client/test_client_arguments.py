"""Wrong arguments raise ValueError, before anything is sent, and say what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from kvtier_client import Client, Page, PageId

from tests.unit.client.peer import LAYOUT, chain

H = chain(3)


def report(client: Client, **wrong: float) -> bool:
    right = {"block_tokens": 16, "prefill_tokens_per_s": 1000.0, "at_depth": 0, "bytes_per_token": 1e5}
    return client.report(LAYOUT, **right | wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.lookup(b"short", H), "layout must be 32 bytes"),
        (lambda c: c.lookup(LAYOUT, [b"x" * 15]), r"hashes\[0\] must be 16 to 64 bytes"),
        (lambda c: c.lookup(LAYOUT, [H[0], b"x" * 65]), r"hashes\[1\] must be 16 to 64 bytes"),
        (lambda c: c.lookup(LAYOUT, ["x" * 32]), r"hashes\[0\]"),
        (lambda c: c.lookup(LAYOUT, [H[0], b"x" * 16]), "hashes of one list have one length"),
        (lambda c: c.lookup(LAYOUT, b"x" * 32), r"hashes\[0\]"),
        (lambda c: c.lookup(LAYOUT, H, pages=[]), "pages must name 1 to 1024 pages"),
        (lambda c: c.lookup(LAYOUT, H, pages=[PageId(), PageId()]), "names a page twice"),
        (lambda c: c.lookup(LAYOUT, H, pages=[PageId(0, 1 << 16)]), "out of range"),
        (lambda c: c.lookup(LAYOUT, H, deadline_s=0), "deadline must be above 0"),
        (lambda c: c.get(LAYOUT, H, deadline_s=float("nan")), "deadline must be above 0"),
        (
            lambda c: c.get_into(LAYOUT, H, [bytearray(1)]),
            "3 buffers are needed, .* not 1",
        ),
        (lambda c: c.get_into(LAYOUT, H[:1], [b"constant"]), r"buffers\[0\] is read-only"),
        (lambda c: c.get_into(LAYOUT, H[:1], [np.zeros((4, 4)).T[1:]]), r"buffers\[0\] is not C-contiguous"),
        (lambda c: c.get_into(LAYOUT, H[:1], [torch.zeros(4, 4).t()]), r"buffers\[0\] is not C-contiguous"),
        (lambda c: c.get_into(LAYOUT, H, torch.zeros(4, 3).t()[:3]), r"buffers is not C-contiguous"),
        (lambda c: c.get_into(LAYOUT, H, np.zeros((3, 4, 4)).swapaxes(1, 2)[:, 1:]), r"buffers\[0\] is not C-cont"),
        (lambda c: c.get_into(LAYOUT, H[:1], [torch.zeros(4, device="meta")]), r"buffers\[0\] is not C-contiguous"),
        (lambda c: c.get_into(LAYOUT, H[:1], [17]), r"buffers\[0\] is not C-contiguous"),
        (lambda c: c.get_into(LAYOUT, H[:1], [None]), "only a trailing page may be without a buffer"),
        (lambda c: c.get(LAYOUT, H, hold=-1), "a hold's id is a whole number"),
        (lambda c: c.release(1 << 64), "a hold's id is a whole number"),
        (lambda c: c.lookup(LAYOUT, H, pages=[PageId(0, 0), PageId(0, 1, 4)]), r"group 0 is named both trailing"),
        (lambda c: c.lookup(LAYOUT, H, pages=[PageId(0, 0, 1 << 32)]), "out of range"),
        (lambda c: c.lookup(LAYOUT, H, pages=[PageId(0, 0), PageId(0, 0, 2)]), "names a page twice"),
        (lambda c: c.delete(LAYOUT, [b"short"]), r"hashes\[0\] must be 16 to 64 bytes"),
        (lambda c: c.pin(LAYOUT, H, -1), "seconds must be a whole number from 0"),
        (lambda c: c.pin(LAYOUT, H, 1.5), "seconds must be a whole number from 0"),
        (lambda c: report(c, block_tokens=0), "block_tokens must be above 0"),
        (lambda c: report(c, prefill_tokens_per_s=0), "prefill_tokens_per_s and bytes_per_token must be above 0"),
        (lambda c: report(c, bytes_per_token=float("inf")), "must be above 0 and finite"),
        (
            lambda c: c.put(LAYOUT, None, [Page(H[0], b"x", PageId(0, 0, 4)), Page(H[0], b"y", PageId(0, 0))]),
            "comes twice",
        ),
        (
            lambda c: c.put(LAYOUT, None, [Page(H[0], b"x", PageId(0, 0, 4)), Page(H[0], b"y", PageId(0, 1))]),
            "group 0 is named both",
        ),
        (lambda c: c.put(LAYOUT, b"", [Page(H[0], b"x")]), "parent must be 16 to 64 bytes"),
        (lambda c: c.put(LAYOUT, None, [Page(H[0], b"")]), r"pages\[0\].data is empty"),
        (lambda c: c.put(LAYOUT, None, [Page(H[0], b"x"), Page(H[0], b"y")]), "comes twice"),
        (lambda c: c.put(LAYOUT, H[0], [Page(H[0], b"x")]), "comes twice in the chain"),
        (
            lambda c: c.put(LAYOUT, None, [Page(H[0], b"x"), Page(H[1], b"y"), Page(H[0], b"z", PageId(0, 1))]),
            "comes twice in the chain",
        ),
        (lambda c: c.put(LAYOUT, None, [Page(H[0], bytes(8193))]), "needs 12288 bytes of staging, of 8192"),
    ],
)
def test_wrong_argument_raises_and_sends_nothing(
    tmp_path: Path, call: Callable[[Client], object], message: str
) -> None:
    with Client(tmp_path / "nobody.sock", staging_bytes=8192) as client:
        with pytest.raises(ValueError, match=message):
            call(client)
        assert not client.misses


@pytest.mark.parametrize("options", [{"deadline_s": -1}, {"put_deadline_s": 0}, {"staging_bytes": 4095}])
def test_wrong_client_option_raises(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"deadline|staging_bytes"):
        Client("/nowhere", **options)  # type: ignore[arg-type]


def test_nothing_asked_is_nothing_found_without_a_call(tmp_path: Path) -> None:
    with Client(tmp_path / "nobody.sock") as client:
        assert client.lookup(LAYOUT, []).whole_blocks == 0
        assert client.get(LAYOUT, []).blocks == 0
        assert client.get_into(LAYOUT, [], []).blocks == 0
        assert client.hold(LAYOUT, []).blocks == 0
        assert client.prefetch(LAYOUT, []) == 0
        assert client.pin(LAYOUT, [], 5) == 0
        assert client.delete(LAYOUT, [])
        assert client.put(LAYOUT, None, []).stored_pages == 0
        assert not client.misses
