"""A folder passed through: FUSE requests on nodes become system calls on the files behind them.

Thread-safe. Everything raises OSError, which becomes the request's error.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import wire
from .wire import Op, Request

Answer = list[bytes | memoryview]


_ZEROS: Final = bytes(1 << 20)


class Tree:
    """Nodes and open handles of one mount, backed by `folder`."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._paths: dict[int, Path] = {wire.ROOT_ID: folder}
        self._nodes: dict[Path, int] = {folder: wire.ROOT_ID}
        self._next_node = wire.ROOT_ID
        self._fds: dict[int, int] = {}
        """Descriptors of nodes that were opened; kept for the mount's life, so that unlinked files stay usable."""
        self._work: dict[int, Callable[[Request], Answer]] = {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: lambda it: [self._attr(it.node)],
            Op.SETATTR: self._setattr,
            Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._rmdir,
            Op.RENAME: lambda it: self._rename(it, with_flags=False),
            Op.RENAME2: lambda it: self._rename(it, with_flags=True),
            Op.OPEN: self._open,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.FALLOCATE: self._fallocate,
            Op.STATFS: lambda it: [wire.encode_statfs(os.statvfs(self._path(it.node)))],
            Op.OPENDIR: lambda it: [wire.encode_open(it.node, is_folder=True)],
            Op.READDIR: self._readdir,
            Op.RELEASE: lambda _: [],
            Op.RELEASEDIR: lambda _: [],
            Op.FLUSH: lambda _: [],
            Op.FSYNC: lambda _: [],
            Op.FSYNCDIR: lambda _: [],
        }

    def carry_out(self, request: Request) -> Answer:
        """The answer's body. Flushes do nothing: the files behind lose nothing anyway. Raises OSError."""
        work = self._work.get(request.opcode)
        if work is None:
            raise OSError(errno.ENOSYS, f"request {request.opcode} is not known")
        return work(request)

    def name(self, node: int) -> str:
        """The node's path below the mount."""
        return str(self._path(node).relative_to(self._path(wire.ROOT_ID)))

    def close(self) -> None:
        """Close every descriptor."""
        with self._lock:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _path(self, node: int) -> Path:
        with self._lock:
            return self._paths[node]

    def _node_of(self, path: Path) -> int:
        with self._lock:
            if path not in self._nodes:
                self._next_node += 1
                self._nodes[path] = self._next_node
                self._paths[self._next_node] = path
            return self._nodes[path]

    def _forget(self, path: Path) -> None:
        """The name leads to this node no more; the node stays for those who have it open."""
        with self._lock:
            self._nodes.pop(path, None)

    def _fd(self, node: int) -> int:
        with self._lock:
            if node not in self._fds:
                self._fds[node] = os.open(self._paths[node], os.O_RDWR | os.O_CLOEXEC)
            return self._fds[node]

    def _stat(self, node: int) -> os.stat_result:
        with self._lock:
            fd, path = self._fds.get(node), self._paths[node]
        return path.lstat() if fd is None else os.fstat(fd)

    def _attr(self, node: int) -> bytes:
        return wire.encode_attr(node, self._stat(node))

    def _entry(self, path: Path) -> bytes:
        stat = path.lstat()
        return wire.encode_entry(self._node_of(path), stat)

    def _lookup(self, it: Request) -> Answer:
        return [self._entry(self._path(it.node) / wire.decode_name(it.body))]

    def _setattr(self, it: Request) -> Answer:
        change = wire.decode_setattr(it.body)
        if change.valid & wire.SETATTR_SIZE:
            os.ftruncate(self._fd(it.node), change.size)
        if change.valid & wire.SETATTR_MODE:
            self._path(it.node).chmod(change.mode & 0o7777)
        return [self._attr(it.node)]

    def _mkdir(self, it: Request) -> Answer:
        mode, name = wire.decode_mkdir(it.body)
        path = self._path(it.node) / name
        path.mkdir(mode & 0o7777)
        return [self._entry(path)]

    def _unlink(self, it: Request) -> Answer:
        path = self._path(it.node) / wire.decode_name(it.body)
        path.unlink()
        self._forget(path)
        return []

    def _rmdir(self, it: Request) -> Answer:
        path = self._path(it.node) / wire.decode_name(it.body)
        path.rmdir()
        self._forget(path)
        return []

    def _rename(self, it: Request, *, with_flags: bool) -> Answer:
        folder, flags, old_name, new_name = wire.decode_rename(it.body, with_flags=with_flags)
        if flags:
            raise OSError(errno.EINVAL, "renaming with flags is not passed through")
        old, new = self._path(it.node) / old_name, self._path(folder) / new_name
        old.rename(new)
        with self._lock:
            self._nodes.pop(new, None)
            for path in [path for path in self._nodes if path == old or old in path.parents]:
                node = self._nodes.pop(path)
                self._paths[node] = new / path.relative_to(old)
                self._nodes[self._paths[node]] = node
        return []

    def _open(self, it: Request) -> Answer:
        fd = self._fd(it.node)
        if wire.decode_open_flags(it.body) & os.O_TRUNC:
            os.ftruncate(fd, 0)
        return [wire.encode_open(it.node)]

    def _create(self, it: Request) -> Answer:
        flags, mode, name = wire.decode_create(it.body)
        path = self._path(it.node) / name
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags & (os.O_EXCL | os.O_TRUNC)
        fd = os.open(path, how, mode & 0o7777)
        entry = self._entry(path)
        node = self._node_of(path)
        with self._lock:
            spare = self._fds.setdefault(node, fd)
        if spare != fd:
            os.close(fd)
        return [entry, wire.encode_open(node)]

    def _read(self, it: Request) -> Answer:
        _, offset, size = wire.decode_read(it.body)
        return [os.pread(self._fd(it.node), size, offset)]

    def _write(self, it: Request) -> Answer:
        write = wire.decode_write(it.body)
        return [wire.encode_write(os.pwrite(self._fd(it.node), write.data, write.offset))]

    def _fallocate(self, it: Request) -> Answer:
        """Reserve nothing, so that sizes alone change; a hole is written as zeros, which every file system takes."""
        _, mode, offset, length = wire.decode_fallocate(it.body)
        fd = self._fd(it.node)
        size = os.fstat(fd).st_size
        if mode & ~(wire.PUNCH_HOLE | wire.KEEP_SIZE):
            raise OSError(errno.EOPNOTSUPP, f"fallocate mode {mode} is not passed through")
        if mode & wire.PUNCH_HOLE:
            for at in range(offset, min(offset + length, size), len(_ZEROS)):
                os.pwrite(fd, memoryview(_ZEROS)[: min(len(_ZEROS), offset + length - at, size - at)], at)
        elif not mode & wire.KEEP_SIZE and offset + length > size:
            os.ftruncate(fd, offset + length)
        return []

    def _readdir(self, it: Request) -> Answer:
        _, offset, size = wire.decode_read(it.body)
        folder = self._path(it.node)
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        entries = [(self._node_of(folder / entry.name), entry.name, entry.is_dir()) for entry in found]
        return [wire.encode_listing(entries, offset, size)]
