"""Whose pods may have mapped a pool's chunks: noted in the arena, since the store's successor has to know it too.

A note is an empty file beside the chunks, named after the account: that takes one step, and hugetlbfs takes no writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvtier_agent.control import PoolGrant, ServiceAccount

from .grants import is_granted

FOLDER: Final = "accounts"


class Accounts:
    """Of all pools in one arena. Event loop thread only."""

    def __init__(self, arena: Path) -> None:
        self._arena = arena
        self._lost: defaultdict[str, set[ServiceAccount]] = defaultdict(set)
        """By pool, those that are noted and were told of as lost."""

    def note(self, pool_uid: str, account: ServiceAccount) -> None:
        """Before a pod of the account is told of the pool's chunks. Raises OSError."""
        self._lost[pool_uid].discard(account)
        path = self._path(pool_uid, account)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def lose(self, pool: PoolGrant) -> bool:
        """Whether accounts that are noted have the pool no more. Each time that one loses it is told once."""
        lost = {it for it in self._noted(pool.uid) if not is_granted(it, pool.service_accounts)}
        told = self._lost[pool.uid]
        fresh = lost - told
        told |= fresh
        return bool(fresh)

    def forget_lost(self) -> None:
        """No chunk is left that those who lost a pool may have mapped. Raises OSError."""
        while self._lost:
            pool_uid, accounts = self._lost.popitem()
            for account in accounts:
                self._path(pool_uid, account).unlink(missing_ok=True)

    def _noted(self, pool_uid: str) -> Iterator[ServiceAccount]:
        return (ServiceAccount(it.parent.name, it.name) for it in (self._arena / pool_uid / FOLDER).glob("*/*"))

    def _path(self, pool_uid: str, account: ServiceAccount) -> Path:
        return self._arena / pool_uid / FOLDER / account.namespace / account.name
