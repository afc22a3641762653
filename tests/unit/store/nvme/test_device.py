"""Opening a device: a file in a folder, or a block device under it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtier_agent.store.arena_format import PAGE
from kvtier_agent.store.errors import FormatRefused
from kvtier_agent.store.nvme.device import (
    MIN_DEVICE_BYTES,
    DeviceRefused,
    OpenDevice,
    Superblock,
    decode_superblock,
    encode_superblock,
    open_device,
    plan_superblock,
    read_probe,
    write_probe,
)

CAPACITY = 16 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.mkdir()
    return path


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[Path]:
    """A block device."""
    backing = tmp_path / "backing"
    with backing.open("wb") as file:
        file.truncate(CAPACITY)
    made = subprocess.run(
        ["/sbin/losetup", "--find", "--show", "--direct-io=on", str(backing)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    yield Path(made.stdout.strip())
    subprocess.run(["/sbin/losetup", "--detach", made.stdout.strip()], check=True)


def _once(path: Path, capacity: int = CAPACITY, **how: object) -> OpenDevice:
    opened = open_device(path, capacity, **how)  # type: ignore[arg-type]
    os.close(opened.fd)
    return opened


def _fix(page: bytearray) -> bytes:
    """With the checksum that its bytes ask for."""
    from kvtier_agent.store.checksums import header_checksum

    page[-8:] = header_checksum(bytes(page[:-8])).to_bytes(8, "little")
    return bytes(page)


@pytest.mark.parametrize(
    ("capacity", "unit_mib"), [(8 << 20, 0.5), (64 << 20, 4), (1 << 30, 16), (4 << 30, 64), (1 << 40, 64)]
)
def test_units_grow_with_the_device(capacity: int, unit_mib: float) -> None:
    block = plan_superblock(capacity, bytes(16))
    assert block.unit_bytes == int(unit_mib * (1 << 20))
    assert capacity - block.unit_bytes - (9 << 20) < block.device_bytes <= capacity
    assert decode_superblock("x", encode_superblock(block)) == block


def test_fresh_folder_becomes_a_device_and_stays_it(folder: Path) -> None:
    first, second = _once(folder), _once(folder)
    assert first.superblock == second.superblock
    assert (folder / "kvtier.dev").stat().st_size == first.superblock.device_bytes
    assert (folder / "kvtier.dev").stat().st_blocks * 512 < 1 << 20


def test_device_in_use_is_refused_to_a_second(folder: Path) -> None:
    first = open_device(folder, CAPACITY)
    with pytest.raises(DeviceRefused, match="in use by another process"):
        open_device(folder, CAPACITY)
    os.close(first.fd)
    _once(folder)


def test_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_device(tmp_path / "missing", CAPACITY)


def test_file_that_is_not_blank_is_refused_and_left_alone(folder: Path) -> None:
    content = b"someone's" + bytes(1 << 20)
    (folder / "kvtier.dev").write_bytes(content)
    with pytest.raises(DeviceRefused, match="not blank"):
        open_device(folder, CAPACITY)
    assert (folder / "kvtier.dev").read_bytes() == content
    assert _once(folder, initialize="always").superblock.units > 0


def test_unknown_format_is_refused_even_where_it_may_be_initialised(folder: Path) -> None:
    _once(folder)
    file = folder / "kvtier.dev"
    before = bytearray(file.read_bytes())
    for at in (0, PAGE):
        page = before[at : at + PAGE]
        page[8] = 2
        before[at : at + PAGE] = _fix(page)
    file.write_bytes(before)
    with pytest.raises(FormatRefused, match="media format 1, found format 2"):
        open_device(folder, CAPACITY, initialize="always")
    assert file.read_bytes() == before


def test_damaged_superblock_is_read_from_its_copy(folder: Path) -> None:
    first = _once(folder)
    with (folder / "kvtier.dev").open("r+b") as file:
        file.write(b"\xff" * 100)
    assert _once(folder).superblock == first.superblock


def test_device_that_came_back_as_another_is_refused(folder: Path) -> None:
    first = _once(folder)
    (folder / "kvtier.dev").unlink()
    with pytest.raises(FileNotFoundError):
        open_device(folder, CAPACITY, expect_uuid=first.superblock.uuid)
    (folder / "kvtier.dev").write_bytes(bytes(CAPACITY))
    with pytest.raises(DeviceRefused, match=r"came back as another device.*blank"):
        open_device(folder, CAPACITY, expect_uuid=first.superblock.uuid)
    other = _once(folder)
    with pytest.raises(DeviceRefused, match="came back as another device"):
        open_device(folder, CAPACITY, expect_uuid=first.superblock.uuid)
    assert other.superblock.uuid != first.superblock.uuid


def test_device_with_more_capacity_gains_units(folder: Path) -> None:
    first, second = _once(folder), _once(folder, 2 * CAPACITY)
    assert second.superblock.units == first.superblock.units + CAPACITY // first.superblock.unit_bytes
    assert second.superblock.uuid == first.superblock.uuid


def test_device_that_is_too_small_is_refused(folder: Path) -> None:
    with pytest.raises(DeviceRefused, match="too few"):
        open_device(folder, MIN_DEVICE_BYTES - 1)


def test_open_device_answers_probes(folder: Path) -> None:
    opened = open_device(folder, CAPACITY)
    write_probe(opened)
    assert read_probe(opened)
    os.pwrite(opened.fd, bytes(PAGE), PAGE) if not opened.direct else (folder / "kvtier.dev").write_bytes(
        bytes(CAPACITY)
    )
    assert not read_probe(opened)
    os.close(opened.fd)


def test_superblock_of_nonsense_is_not_believed() -> None:
    block = plan_superblock(CAPACITY, bytes(16))
    odd = Superblock(block.uuid, 12345, block.units, block.records_at, block.records_bytes, block.units_at)
    assert decode_superblock("x", encode_superblock(odd)) is None


def test_raw_device_is_initialised_when_blank_and_exclusive(loop_device: Path) -> None:
    opened = open_device(loop_device, 1 << 40)
    assert (opened.raw, opened.direct) == (True, True)
    assert opened.superblock.device_bytes <= CAPACITY
    with pytest.raises(DeviceRefused, match="in use"):
        open_device(loop_device, 1 << 40)
    os.close(opened.fd)
    assert _once(loop_device, 1 << 40).superblock == opened.superblock


def test_raw_device_with_other_content_is_refused(loop_device: Path) -> None:
    with loop_device.open("r+b", buffering=0) as file:
        file.seek(CAPACITY - 512)
        file.write(b"x" * 512)
    with pytest.raises(DeviceRefused, match="not blank"):
        open_device(loop_device, CAPACITY)


def test_handed_over_descriptor_is_used(loop_device: Path) -> None:
    fd = os.open(loop_device, os.O_RDWR | os.O_EXCL | os.O_DIRECT)
    opened = open_device(Path("/nowhere"), CAPACITY, fd=fd)
    assert opened.raw
    assert read_probe(opened)
    os.close(opened.fd)
