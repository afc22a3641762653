"""Staging that a caller fills itself, so that its put copies nothing."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from .memory import address_of, aligned_buffer
from .staging import Lease, Staging


class Area:
    """What one caller fills. Used within its context only."""

    def __init__(self, size: int, lease: Lease | None) -> None:
        """Where no lease could be had, ordinary memory does as well: its puts copy."""
        self.lease = lease
        self.view = aligned_buffer(max(size, 1)).data[:size] if lease is None else lease.view[:size]
        self.address = address_of(self.view)
        self._begins: list[int] = []
        self._put: list[tuple[int, bytes]] = []

    def holds(self, address: int, size: int) -> bool:
        """Whether all of these bytes are its own."""
        return 0 <= address - self.address <= self.view.nbytes - size

    def mark_put(self, address: int, size: int, block: bytes) -> bool:
        """The bytes are put as a page of `block`. False where some of them were put as another's before.

        The agent may still copy from there, for a put that was not answered.
        """
        end = address + size
        at = bisect.bisect_right(self._begins, address)
        if at and self._begins[at - 1] == address and self._put[at - 1] == (end, block):
            return True
        if (at and self._put[at - 1][0] > address) or (at < len(self._begins) and self._begins[at] < end):
            return False
        self._begins.insert(at, address)
        self._put.insert(at, (end, block))
        return True

    def close(self) -> None:
        """Give it back; its bytes mean nothing from now on. May be repeated."""
        with contextlib.suppress(BufferError):  # the caller made arrays of it, which the memory outlives
            self.view.release()
        if self.lease is not None:
            self.lease.free()


@dataclass(frozen=True, slots=True)
class InPlace:
    """Pages that lie in a staging already."""

    staging: Staging
    offsets: list[int]


class Areas:
    """One client's areas. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Area] = []

    def open(self, size: int, lease: Lease | None) -> Area:
        """An area of `size` bytes, in the lease where there is one."""
        area = Area(size, lease)
        with self._lock:
            self._open.append(area)
        return area

    def close(self, area: Area) -> None:
        """The caller is done with it."""
        with self._lock:
            self._open.remove(area)
        area.close()

    def find(self, spans: Sequence[tuple[int, int]], blocks: Sequence[bytes]) -> InPlace | None:
        """Where these pages lie, if all of them lie in areas of one staging. Spans are addresses and bytes.

        Raises ValueError when one lies where a page of another block was put from.
        """
        if not self._open:
            return None
        with self._lock:
            areas = [next((area for area in self._open if area.holds(*span)), None) for span in spans]
            stagings = {area.lease.staging if area is not None and area.lease is not None else None for area in areas}
            staging = stagings.pop() if len(stagings) == 1 else None
            if staging is None:
                return None
            for index, (area, span, block) in enumerate(zip(areas, spans, blocks, strict=True)):
                if area is not None and not area.mark_put(*span, block):
                    raise ValueError(f"pages[{index}] lies where another block was put from; take a new staging area")
        return InPlace(staging, [address - staging.address for address, _ in spans])
