"""A contender's process: `python -m kvtier_bench.contenders NAME TASK`; commands and answers are JSON lines.

A command is `[WHAT, BATCH, VERSION]`; the answer is the seconds that the call took, or `{"error": ...}`. After each
get every byte is compared with the source, outside the time, and wiped.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from kvtier_bench.contenders.contender import Buffers, Contender, Task

_MODULES: Final = {"kvtier": "ours", "mooncake": "mooncake", "redis": "valkey", "files": "files", "lmcache": "lmcache"}


_READS: Final = ("get", "memcpy_1", "memcpy_all")


def make(name: str, buffers: Buffers) -> Contender:
    """The contender of that name; its module, and so its libraries, are loaded now."""
    module = importlib.import_module(f"kvtier_bench.contenders.{_MODULES[name]}")
    contender: Contender = module.connect(buffers)
    return contender


def timed(call: Callable[[int, int], float | None], batch: int, version: int) -> float:
    """The seconds that the call took, or what it says itself."""
    began = time.perf_counter()
    own = call(batch, version)
    return time.perf_counter() - began if own is None else own


def check_and_wipe(buffers: Buffers, batch: int) -> None:
    """Read every byte that was copied; the next get must bring it anew.

    Raises ValueError when one differs.
    """
    got = buffers.batch(buffers.destination, batch)
    if not np.array_equal(got, buffers.batch(buffers.source, batch)):
        raise ValueError("other bytes than were put")
    got.fill(0)


def main() -> None:
    """Serve commands until stdin ends."""
    buffers = Buffers(Task(**json.loads(sys.argv[2])))
    contender = make(sys.argv[1], buffers)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, batch, version = json.loads(line)
        try:
            seconds = timed(getattr(contender, what), batch, version)
            if what in _READS:
                check_and_wipe(buffers, batch)
            answer = json.dumps(seconds)
        except Exception as error:  # the bench reports it, whatever it is
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(answer, flush=True)
    contender.close()


if __name__ == "__main__":
    main()
