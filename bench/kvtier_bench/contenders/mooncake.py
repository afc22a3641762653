"""Mooncake Store over TCP; the memory is in another process on this node, as it is for pods that share it."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Final

from kvtier_bench.contenders.contender import Buffers
from kvtier_bench.memory import address_of

_LOCAL_BUFFER: Final = 128 << 20
_GIVE_UP_S: Final = 60.0


class Mooncake:
    """A Contender."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._store = _join(buffers.task.address["master"], 0)
        for memory in (buffers.source, buffers.destination):
            _check(self._store.register_buffer(address_of(memory), memory.nbytes))

    def put(self, batch: int, version: int) -> None:
        """By `batch_put_from`."""
        addresses = [address_of(page) for page in self._buffers.pages(self._buffers.source, batch)]
        _check(*self._store.batch_put_from(self._keys(batch, version), addresses, self._sizes))

    def get(self, batch: int, version: int) -> None:
        """By `batch_get_into`."""
        addresses = [address_of(page) for page in self._buffers.pages(self._buffers.destination, batch)]
        read = self._store.batch_get_into(self._keys(batch, version), addresses, self._sizes)
        if read != self._sizes:
            raise OSError(f"mooncake returned {sorted(set(read))}")

    def drop(self, batch: int, version: int) -> None:
        """By `remove`."""
        for key in self._keys(batch, version):
            _check(self._store.remove(key))

    def close(self) -> None:
        """Disconnect."""
        self._store.close()

    @property
    def _sizes(self) -> list[int]:
        return [self._buffers.task.page_bytes] * self._buffers.task.batch_pages

    def _keys(self, batch: int, version: int) -> list[str]:
        return [f"{batch}-{version}-{page}" for page in range(self._buffers.task.batch_pages)]


def connect(buffers: Buffers) -> Mooncake:
    """A client of the master at `master`, without memory of its own to give."""
    return Mooncake(buffers)


def _join(master: str, segment_bytes: int) -> Any:
    module = importlib.import_module("mooncake.store")  # only the peers' environment has it
    store = module.MooncakeDistributedStore()
    _check(store.setup("127.0.0.1", "P2PHANDSHAKE", segment_bytes, _LOCAL_BUFFER, "tcp", "", master))
    return store


def _check(*codes: int) -> None:
    if any(codes):
        raise OSError(f"mooncake returned {sorted(set(codes))}")


def host(master: str, segment_bytes: int) -> None:
    """Give the store its memory, until stdin ends."""
    deadline = time.monotonic() + _GIVE_UP_S
    while True:
        try:
            store = _join(master, segment_bytes)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)
    print('"ready"', flush=True)
    sys.stdin.read()
    store.close()


if __name__ == "__main__":
    host(sys.argv[1], int(sys.argv[2]))
