"""What each pool is granted on a node of its class. Pure.

A node's object has room for ACCOUNT_BYTES of service accounts, over all pools. Where they name more, every pool
keeps its share, those that need less leave the rest to the others, and what is over is cut from the end of the
longest lists: no grant of one pool can keep another's revocation from being written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kvtier_crds.models import CacheNodeSpec, CachePoolSpec, GrantedServiceAccount, NodePool, PoolQuota, Tiers

from kvtier_operator.names import MAX_POOLS_PER_NODE
from kvtier_operator.quantities import parse_bytes
from kvtier_operator.view.facts import PoolFacts, View

EVERY_ACCOUNT: Final = "*"
ACCOUNT_BYTES: Final = 768 << 10
"""Of the 1.5 MiB that an object may have; 512 pools with all else, and their status, take up to half of it."""
_ENTRY_BYTES: Final = len('{"namespace":"","name":""},')
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def pools_by_class(view: View) -> Mapping[str, list[PoolFacts]]:
    """Readable pools by the class they name, oldest first; more than a node can have are left out."""
    grouped: dict[str, list[PoolFacts]] = defaultdict(list)
    for pool in view.pools.values():
        if pool.spec is not None and pool.meta.deleting_since is None:
            grouped[pool.spec.tier_class].append(pool)
    return {name: sorted(pools, key=_age)[:MAX_POOLS_PER_NODE] for name, pools in grouped.items()}


def grant(pool: PoolFacts, tiers: Tiers) -> NodePool:
    """The pool's entry in the spec of a node with those tiers.

    A quota above what the tier has is granted as far as it goes: taking the pool out would purge it.
    """
    assert pool.spec is not None
    return NodePool(
        uid=pool.meta.uid,
        namespace=pool.meta.namespace,
        name=pool.meta.name,
        quota=_granted_quota(pool.spec.quota, tiers),
        service_accounts=_granted_accounts(pool.spec, pool.meta.namespace),
        eviction_policy=pool.spec.eviction_policy,
        ttl=pool.spec.ttl,
        nvme=pool.spec.nvme,
        restore=pool.spec.restore,
    )


@dataclass(frozen=True)
class ClassGrants:
    """The pools of a class as its nodes get them."""

    entries: tuple[NodePool, ...]
    """By UID."""
    left_out: Mapping[str, int]
    """By UID, how many of a pool's service accounts are not granted, where some are not."""


def class_grants(pools: Iterable[PoolFacts], tiers: Tiers) -> ClassGrants:
    """What these pools get on a node with those tiers, within the room that its object has."""
    return fit_accounts([grant(pool, tiers) for pool in pools])


def fit_accounts(entries: Iterable[NodePool], room_bytes: int = ACCOUNT_BYTES) -> ClassGrants:
    """The entries with as many service accounts as there is room for."""
    entries = sorted(entries, key=lambda entry: entry.uid)
    shares = fair_shares([_account_bytes(entry.service_accounts) for entry in entries], room_bytes)
    fitted = [_cut(entry, share) for entry, share in zip(entries, shares, strict=True)]
    left_out = {
        entry.uid: len(entry.service_accounts) - len(cut.service_accounts)
        for entry, cut in zip(entries, fitted, strict=True)
        if len(cut.service_accounts) < len(entry.service_accounts)
    }
    return ClassGrants(tuple(fitted), left_out)


def fair_shares(needs: Sequence[int], room: int) -> list[int]:
    """Each need, or where they are more than `room`, the same largest share for all that need more than that."""
    shares = list(needs)
    rest = room
    by_need = sorted(range(len(needs)), key=needs.__getitem__)
    for rank, at in enumerate(by_need):
        shares[at] = min(needs[at], rest // (len(needs) - rank))
        rest -= shares[at]
    return shares


def _cut(entry: NodePool, share: int) -> NodePool:
    kept: list[GrantedServiceAccount] = []
    for account in entry.service_accounts:
        share -= _account_bytes([account])
        if share < 0:
            return entry.model_copy(update={"service_accounts": kept})
        kept.append(account)
    return entry


def _account_bytes(accounts: Iterable[GrantedServiceAccount]) -> int:
    """As the API server stores them."""
    return sum(_ENTRY_BYTES + len(account.namespace or "") + len(account.name) for account in accounts)


def unreadable_grants(view: View, present: CacheNodeSpec | None) -> list[NodePool]:
    """Entries that stay as they are, since their pool exists but its stored spec cannot be read."""
    unreadable = {
        pool.meta.uid for pool in view.pools.values() if pool.spec is None and pool.meta.deleting_since is None
    }
    return [entry for entry in present.pools if entry.uid in unreadable] if present and unreadable else []


def _age(pool: PoolFacts) -> tuple[datetime, str]:
    return (pool.meta.created or _EPOCH, pool.meta.uid)


def _granted_quota(quota: PoolQuota, tiers: Tiers) -> PoolQuota:
    nvme = _smaller(quota.nvme, tiers.nvme.capacity_per_node) if quota.nvme and tiers.nvme else None
    return PoolQuota(dram=_smaller(quota.dram, tiers.dram.capacity_per_node), nvme=nvme)


def _smaller(quota: str, capacity: str) -> str:
    return quota if parse_bytes(quota) <= parse_bytes(capacity) else capacity


def _granted_accounts(spec: CachePoolSpec, namespace: str) -> list[GrantedServiceAccount]:
    if not spec.service_accounts:
        return [GrantedServiceAccount(namespace=namespace, name=EVERY_ACCOUNT)]
    return [
        GrantedServiceAccount(namespace=account.namespace or namespace, name=account.name)
        for account in spec.service_accounts
    ]
