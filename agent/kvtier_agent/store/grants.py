"""Who gets which pool. Pure: a pod's identity against the latest grants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtier_client.protocol.messages import RefusalCode

from kvtier_agent.control import PoolGrant, ServiceAccount
from kvtier_agent.link import PodIdentity

from .errors import Refusal

ANY: str = "*"


def resolve_pool(pod: PodIdentity, grants: Iterable[PoolGrant]) -> PoolGrant:
    """The pool that the pod's volume names, if this node serves it and the pod may have it. Raises Refusal."""
    namespace, _, name = pod.pool.rpartition("/")
    namespace = namespace or pod.namespace
    wanted = f"{namespace}/{name}"
    granted = next((it for it in grants if (it.namespace, it.name) == (namespace, name)), None)
    if granted is None:
        raise Refusal(
            RefusalCode.NOT_GRANTED,
            f"pool {wanted} is not served on this node; create the CachePool, name this node's TierClass in it, "
            "and see its conditions",
        )
    if not is_granted(pod, granted.service_accounts):
        raise Refusal(
            RefusalCode.NOT_GRANTED,
            f"service account {pod.namespace}/{pod.service_account} may not use pool {wanted}; "
            "add it to the CachePool's spec",
        )
    return granted


def pools_lost(pods: Iterable[PodIdentity], before: Sequence[PoolGrant], now: Sequence[PoolGrant]) -> set[str]:
    """UIDs of pools that one of the pods had before and has no more, though they are still served."""
    served = {grant.uid for grant in now}
    lost = set()
    for pod in pods:
        had, has = _pool_uid(pod, before), _pool_uid(pod, now)
        if had is not None and had != has and had in served:
            lost.add(had)
    return lost


def _pool_uid(pod: PodIdentity, grants: Sequence[PoolGrant]) -> str | None:
    try:
        return resolve_pool(pod, grants).uid
    except Refusal:
        return None


def is_granted(pod: PodIdentity, accounts: Iterable[ServiceAccount]) -> bool:
    """Whether one of the grants is for the pod's service account."""
    return any(
        account.namespace == pod.namespace and account.name in (ANY, pod.service_account) for account in accounts
    )
