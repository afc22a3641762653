"""Work inside folders that others may write, always through descriptors and never through a symbolic link.

A pod can plant links, deep trees and a great many files in the folder it was given; nothing here
leaves that folder, recurses, or takes more steps than it was allowed.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath, PurePosixPath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _keep_nothing(_name: str) -> bool:
    return False


@contextmanager
def folder(path: str | PurePath, *, root: str | PurePath = "/") -> Iterator[int]:
    """A descriptor of the folder `path` below `root`, reached through no symbolic link below `root`.

    Raises FileNotFoundError, or NotADirectoryError with the part that is a link or no folder.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        seen = PurePosixPath("/")
        for part in PurePosixPath("/", path).parts[1:]:
            seen /= part
            below = _open_part(current, part, seen)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def _open_part(parent: int, part: str, seen: PurePosixPath) -> int:
    if part == "..":
        raise NotADirectoryError(errno.ENOTDIR, "the path must not contain `..`", str(seen))
    try:
        return os.open(part, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(seen)) from error
        raise type(error)(error.errno, error.strerror, str(seen)) from error


def make_folder(parent: int, name: str, *, uid: int, mode: int) -> None:
    """The folder `name` exists in `parent`, with this owner (user and group) and mode.

    Raises NotADirectoryError when something else has the name.
    """
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    made = _open_part(parent, name, PurePosixPath(name))
    try:
        os.fchown(made, uid, uid)
        os.fchmod(made, mode)
    finally:
        os.close(made)


def clear_folder(parent: int, *, keep: Callable[[str], bool] = _keep_nothing, limit: int = sys.maxsize) -> int:
    """Remove all that is in `parent`, deep, except entries of its own that `keep` names.

    Takes at most about `limit` steps; returns the steps taken, fewer than `limit` when all is gone.
    Subfolders are emptied by moving their subfolders up into `parent`, so that depth costs nothing.
    Raises OSError for what cannot be removed (a mount point, an immutable file).
    """
    steps = 0
    pending = _names(parent, keep, limit)
    while pending and steps < limit:
        name = pending.pop()
        steps += 1
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            taken, hoisted = _flatten(parent, name, limit - steps)
            steps += taken
            pending += hoisted
        except FileNotFoundError:
            continue
    return steps


def put_aside(parent: int, name: str) -> None:
    """`name` is not in `parent` any more. What was in it, if it is a folder, is under a new name: takes no time."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        os.rename(name, _aside(), src_dir_fd=parent, dst_dir_fd=parent)


def remove_folder(parent: int, name: str) -> None:
    """`name` is not in `parent` any more, nor what was in it."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        inner = os.open(name, _FOLDER, dir_fd=parent)
        try:
            clear_folder(inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=parent)


def _aside() -> str:
    return f".gone-{secrets.token_hex(8)}"


def _names(parent: int, keep: Callable[[str], bool], limit: int) -> list[str]:
    names: list[str] = []
    with os.scandir(parent) as entries:
        for entry in entries:
            if len(names) >= limit:
                break
            if not keep(entry.name):
                names.append(entry.name)
    return names


def _flatten(parent: int, name: str, limit: int) -> tuple[int, list[str]]:
    """Empty the folder `name` and remove it; its own subfolders move up into `parent` under new names."""
    try:
        inner = os.open(name, _FOLDER, dir_fd=parent)
    except OSError:  # exchanged for something else meanwhile: the next round sees what it is
        return 0, [name]
    hoisted: list[str] = []
    steps = 0
    try:
        with os.scandir(inner) as entries:
            for entry in entries:
                if steps >= limit:
                    return steps, hoisted
                steps += 1
                if entry.is_dir(follow_symlinks=False):
                    above = _aside()
                    os.rename(entry.name, above, src_dir_fd=inner, dst_dir_fd=parent)
                    hoisted.append(above)
                else:
                    os.unlink(entry.name, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=parent)
    return steps, hoisted
