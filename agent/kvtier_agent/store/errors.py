"""What can go wrong in the store.

StoreError
+-- Refusal          a client asked for what is not given; answered, the connection goes on
+-- FormatRefused    a chunk, segment or device of another format; it is left as it is
+-- ChunkDamaged     a chunk whose header is not intact; it is freed
+-- IndexBroken      the index has a defect: end, and let the successor adopt the arena
+-- HugePagesMissing the arena does not lie on the huge pages that the configuration names
+-- LockHeld         another store, or a mover of a dead one, still has the arena
+-- JobFailed        a mover could not do its job
    +-- MoverDied    the mover ended in the middle of it
    +-- DeviceError  the operating system refused the job
"""

from __future__ import annotations

from kvtier_client.protocol.messages import RefusalCode


class StoreError(Exception):
    """Base of all errors of this package."""


class Refusal(StoreError):
    """The request changes nothing and is answered with this code and message."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


class FormatRefused(StoreError):
    """What lies there was written in a format that this store does not read. Nothing was changed."""

    def __init__(self, path: str, expected: str, got: str) -> None:
        self.path = path
        super().__init__(
            f"{path}: expected {expected}, found {got}; run the release that wrote it, or remove it by hand "
            "to start empty"
        )


class ChunkDamaged(StoreError):
    """The chunk cannot be read. Free it: what it held is lost to dram."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class IndexBroken(StoreError):
    """The native index met a defect of its own, and is not to be trusted any more. The store ends with this."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the index failed: {error!r}; the store ends, and the next one adopts its arena")


class HugePagesMissing(StoreError):
    """The node gives less than its TierClass says: no start, so that it is seen."""

    def __init__(self, path: str, wanted: int, found: int) -> None:
        super().__init__(
            f"{path}: lies on pages of {found} bytes, and the TierClass names huge pages of {wanted}; reserve them "
            f"with vm.nr_hugepages and mount a hugetlbfs there with pagesize={wanted}, or name none"
        )


class LockHeld(StoreError):
    """A lock did not become free in time."""

    def __init__(self, path: str, waited_s: float) -> None:
        self.path = path
        super().__init__(
            f"{path}: still locked after {waited_s:.0f} s; another store uses this arena, or a mover of a killed one "
            f"hangs in a device. Find it with: fuser -v {path}"
        )


class JobFailed(StoreError):
    """A job has no result."""


class MoverDied(JobFailed):
    """The mover ended in the middle of the job. None of the job's I/O is in flight any more."""

    def __init__(self, number: int) -> None:
        super().__init__(f"mover {number} ended")


class DeviceError(JobFailed):
    """The operating system refused: close the device, or give up on the chunk."""

    def __init__(self, errno: int, message: str) -> None:
        self.errno = errno
        super().__init__(message)
