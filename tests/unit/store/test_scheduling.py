"""What the index process asks of the scheduler."""

from __future__ import annotations

import subprocess
import sys

ASK = """
import os
from kvtier_agent.store.scheduling import ask_short_slices
print(os.nice(2))
ask_short_slices()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def test_short_slices_leave_the_priority_that_the_store_was_started_with() -> None:
    told = subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True, text=True)
    before, after = told.stdout.split()
    assert before == after
