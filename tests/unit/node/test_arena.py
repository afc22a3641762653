"""The arena's mount, on the real kernel: made once, resized, kept, removed with what is in it."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvtier_agent.node.arena import arena_bytes, decide_resize, ensure_arena, is_mounted, remove_arena
from kvtier_crds.models import HugePages

from tests.unit.node.namespaces import WITH_MOUNTS, in_mount_namespace

MIB = 1 << 20
STORE = 64100


def ensure(path: Path, mib: int) -> None:
    ensure_arena(path / "arena", "store", mib * MIB, HugePages.NONE, STORE)


def limit_mib(path: Path) -> int:
    space = os.statvfs(path / "arena")
    return space.f_blocks * space.f_frsize // MIB


def mounts_with_owner_and_options(path: Path) -> None:
    ensure(path, 128)
    store = (path / "arena/store").stat()
    assert (store.st_uid, stat.S_IMODE(store.st_mode)) == (STORE, 0o700)
    assert (path / "arena").stat().st_uid == 0
    flags = os.statvfs(path / "arena").f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    assert flags & os.ST_NOEXEC
    assert limit_mib(path) == 192


def keeps_files_when_repeated_and_resized(path: Path) -> None:
    ensure(path, 128)
    (path / "arena/store/chunk").write_bytes(bytes(100 * MIB))
    ensure(path, 128)
    ensure(path, 256)
    assert limit_mib(path) == 320
    ensure(path, 16)
    assert limit_mib(path) == 320, "smaller than its content: waits"
    (path / "arena/store/chunk").write_bytes(bytes(10 * MIB))
    ensure(path, 16)
    assert limit_mib(path) == 80
    assert (path / "arena/store/chunk").stat().st_size == 10 * MIB
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    assert sum(str(path / "arena") in line for line in lines) == 1


def removes_all_while_a_file_is_open(path: Path) -> None:
    ensure(path, 128)
    with (path / "arena/store/chunk").open("wb") as chunk:
        chunk.write(bytes(MIB))
        remove_arena(path / "arena")
        assert not (path / "arena").exists()
        assert not is_mounted(path / "arena")
    remove_arena(path / "arena")
    ensure(path, 128)
    assert not list((path / "arena/store").iterdir())


def frees_the_memory_of_files_that_pods_still_map(path: Path) -> None:
    ensure(path, 128)
    pool = path / "arena/store/pool"
    pool.mkdir()
    (pool / "chunk").write_bytes(b"x" * (8 * MIB))
    with (pool / "chunk").open("rb") as chunk, mmap.mmap(chunk.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == ord("x")
        remove_arena(path / "arena")
        assert os.fstat(chunk.fileno()).st_blocks == 0
        assert mapped[:] == bytes(8 * MIB), "zeros, and no fault"


@WITH_MOUNTS
@pytest.mark.parametrize(
    "body",
    [
        mounts_with_owner_and_options,
        keeps_files_when_repeated_and_resized,
        removes_all_while_a_file_is_open,
        frees_the_memory_of_files_that_pods_still_map,
    ],
    ids=lambda body: body.__name__,
)
def test_arena(body: object, tmp_path: Path) -> None:
    in_mount_namespace(body, tmp_path)  # type: ignore[arg-type]


@WITH_MOUNTS
def test_arena_on_huge_pages_mounts_hugetlbfs(tmp_path: Path) -> None:
    in_mount_namespace(mounts_huge_pages, tmp_path)


def mounts_huge_pages(path: Path) -> None:
    ensure_arena(path / "arena", "store", 128 * MIB, HugePages.SIZE_2MI, STORE)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    (line,) = [line for line in lines if str(path / "arena") in line]
    assert " - hugetlbfs " in line
    assert "pagesize=2M" in line
    assert (path / "arena/store").stat().st_uid == STORE


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(128 * MIB, 192 * MIB), (1600 * MIB, 1700 * MIB), (128 * MIB + 1, 192 * MIB + 4096)],
)
def test_arena_bytes_leave_room_in_whole_pages(capacity: int, expected: int) -> None:
    assert arena_bytes(capacity) == expected


@pytest.mark.parametrize(
    ("limit", "used", "wanted", "resize"),
    [(100, 10, 100, False), (100, 10, 200, True), (100, 10, 50, True), (100, 60, 50, False)],
)
def test_resize_waits_for_content_to_fit(limit: int, used: int, wanted: int, resize: bool) -> None:
    present = SimpleNamespace(f_blocks=limit, f_bfree=limit - used, f_frsize=1)
    assert decide_resize(present, wanted) is resize  # type: ignore[arg-type]
