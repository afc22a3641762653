"""When the store starts itself anew: there is something that only a start reads in. Pure: time is an argument.

A start costs clients some seconds of misses, so it comes only once the matter is settled, and ever more seldom.
"""

from __future__ import annotations

from typing import Final

VARIABLE: Final = "KVTIER_STARTED_ANEW"
"""In the environment: how often in a row the store has done so."""
_SETTLED_S: Final = 5.0
_FIRST_S: Final = 30.0
_MOST_S: Final = 3600.0


class Anew:
    """Decides it."""

    def __init__(self, before: int, began: float) -> None:
        """`before`: how often in a row the store started itself anew; `began`: when it did so last."""
        self._before, self._began = before, began
        self._since: float | None = None

    @property
    def pause_s(self) -> float:
        """From a start to the next at least."""
        return min(_FIRST_S * 2.0 ** min(self._before, 16), _MOST_S)

    def is_due(self, waiting: bool, now: float) -> bool:
        """Whether to start now; `waiting`: whether something waits for it. Asked more often than once a second."""
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return now - self._since >= _SETTLED_S and now - self._began >= self.pause_s

    def count(self, now: float) -> int:
        """How often in a row, if it starts anew now; one that was not soon begins another row."""
        return 1 if now - self._began >= 2 * _MOST_S else self._before + 1


def parse_count(text: str) -> int:
    """VARIABLE's value; what is no number counts as none."""
    return int(text) if text.isascii() and text.isdigit() else 0
