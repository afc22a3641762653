from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvtier_bench.kernel import (
    DeviceIo,
    ProcessIo,
    parse_block_stat,
    parse_process_io,
    parse_smaps,
    read_own_memory,
    read_process_io,
    read_tree,
)
from kvtier_bench.machine import parse_cache_size

BLOCK_STAT = "     721       64  1050818     4796      289      179   624032     2044        0      648     6845"
PROCESS_IO = """rchar: 4292
wchar: 0
syscr: 13
syscw: 2
read_bytes: 4096
write_bytes: 8192
cancelled_write_bytes: 0
"""
SMAPS = """55a0-55b0 r-xp 00000000 fe:00 1234                       /usr/bin/python3.11
Rss:                 600 kB
Pss:                 300 kB
7f00-7f10 rw-s 00000000 00:19 77                         /dev/shm/arena/pool/0001.chunk
Rss:              900000 kB
Pss:              900000 kB
7f20-7f30 rw-p 00000000 00:00 0
Rss:                  16 kB
Pss:                  16 kB
"""


def test_block_stat_counts_sectors_as_bytes() -> None:
    assert parse_block_stat(BLOCK_STAT) == DeviceIo(721, 1050818 * 512, 289, 624032 * 512)


def test_short_block_stat_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 11 fields, not 3"):
        parse_block_stat("1 2 3")


def test_device_io_since_then_is_a_difference() -> None:
    assert DeviceIo(10, 4096, 3, 512) - DeviceIo(4, 1024, 1, 512) == DeviceIo(6, 3072, 2, 0)


def test_process_io_takes_calls_and_device_bytes() -> None:
    io = parse_process_io(PROCESS_IO)
    assert io == ProcessIo(13, 4096, 8192)
    assert io + io - io == io


def test_smaps_yields_each_mapping_with_its_share() -> None:
    assert list(parse_smaps(SMAPS)) == [
        ("/usr/bin/python3.11", 300 << 10),
        ("/dev/shm/arena/pool/0001.chunk", 900_000 << 10),
        ("", 16 << 10),
    ]


GROW = """
import os, sys
print(flush=True)
sys.stdin.readline()
kept = os.urandom(32 << 20)
print(flush=True)
sys.stdin.readline()
"""


def test_own_memory_of_a_process_grows_with_what_it_touches() -> None:
    with subprocess.Popen([sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = read_own_memory([process.pid], [])
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        grown = read_own_memory([process.pid], []) - before
        assert grown > 30 << 20  # its part of what it shares with others goes up and down
        process.stdin.close()


def test_a_process_that_ended_counts_nothing() -> None:
    assert read_process_io([2**22 + 1]) == ProcessIo()


def test_tree_of_this_process_begins_with_it() -> None:
    assert read_tree(os.getpid())[0] == os.getpid()
    assert os.getpid() in read_tree(os.getppid())


@pytest.mark.parametrize(("text", "expected"), [("32768K\n", 32 << 20), ("1M", 1 << 20), ("512", 512)])
def test_cache_size_is_read_with_its_unit(text: str, expected: int) -> None:
    assert parse_cache_size(text) == expected


def test_own_process_io_is_what_the_kernel_says() -> None:
    assert read_process_io([os.getpid()]).read_calls > 0
    assert Path("/proc/self/io").exists()
