"""Huge pages: what the arena lies on, against what the configuration names."""

from __future__ import annotations

import os
from pathlib import Path

from .arena_format import PAGE
from .errors import HugePagesMissing
from .log import log


def file_alignment(folder: Path) -> int:
    """The unit of file sizes in a folder: the huge page of a hugetlbfs, else 4,096. Raises OSError."""
    return max(PAGE, os.statvfs(folder).f_bsize)


def decide_alignment(folder: Path, named: int, *, strict: bool) -> int:
    """The unit that chunk files are made in.

    Where the folder's pages are smaller than `named`: falls back to them with a line in the log, or, if `strict`,
    raises HugePagesMissing. Raises OSError.
    """
    found = file_alignment(folder)
    if named > found:
        error = HugePagesMissing(str(folder), named, found)
        if strict:
            raise error
        log("huge_pages.missing", path=folder, error=error)
    return found
