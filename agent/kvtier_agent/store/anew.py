"""When the store starts itself anew: there is something that only a start reads in. Pure: time is an argument.

A start costs clients some seconds of misses, so it comes only once the matter is settled, ever more seldom, and not
for ever: what did not help a few times in a row is not tried again.
"""

from __future__ import annotations

from typing import Final

_SETTLED_S: Final = 5.0
_FIRST_S: Final = 30.0
_MOST_IN_A_ROW: Final = 5
_WELL_S: Final = 3600.0
"""Who had nothing to wait for so long begins another row."""


class Anew:
    """Decides it."""

    def __init__(self, before: int, began: float) -> None:
        """`before`: how often in a row the store started itself anew; `began`: when it did so last."""
        self._before, self._began = before, began
        self._since: float | None = None

    def is_due(self, waiting: bool, now: float) -> bool:
        """Whether to start now; `waiting`: whether something waits for it. Asked more often than once a second."""
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        row = self._row
        return row < _MOST_IN_A_ROW and now - self._since >= _SETTLED_S and now - self._began >= _FIRST_S * 2**row

    def count(self) -> int:
        """How often in a row, if it starts anew now."""
        return self._row + 1

    @property
    def _row(self) -> int:
        was_well = self._since is not None and self._since - self._began >= _WELL_S
        return 0 if was_well else self._before
